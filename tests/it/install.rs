//! `tools/install.sh` with archives of a fake release: a working program is only replaced by one
//! that runs.

use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("../../tools/install.sh");

/// A folder with a release, and a prefix with an older program.
struct Release {
    folder: tempfile::TempDir,
    name: String,
}

impl Release {
    /// `program`: text of the shell script that stands for the program.
    fn new(version: &str, program: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("dmschat-{version}-{}-unknown-linux-gnu", std::env::consts::ARCH);
        let release = Self { folder, name };
        for (path, text) in [("bin/dmschat", program), ("share/man/man1/dmschat.1", "new page\n")] {
            let path = release.at("source").join(&release.name).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            write_program(&path, text);
        }
        let archive = format!("{}.tar.gz", release.name);
        let tar = ["-czf", &archive, "-C", "source", &release.name];
        assert!(Command::new("tar").args(tar).current_dir(release.folder.path()).status().unwrap().success());
        let sum: String =
            Sha256::digest(fs::read(release.at(&archive)).unwrap()).iter().map(|b| format!("{b:02x}")).collect();
        // Another file whose name the dots of a pattern would match comes first.
        let sums = format!("{}  {}\n{sum}  {archive}\n", "0".repeat(64), archive.replace('.', "x"));
        fs::write(release.at("SHA256SUMS"), sums).unwrap();
        fs::create_dir_all(release.at("prefix/bin")).unwrap();
        write_program(&release.at("prefix/bin/dmschat"), "#!/bin/sh\necho old\n");
        release
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Runs the script, or its first bytes, as `curl | sh` does. Returns the exit code and what it
    /// wrote.
    fn install(&self, script: &str, from: &str) -> (i32, String) {
        self.install_with("/usr/bin:/bin", script, from)
    }

    /// [`Self::install`] with the programs of these folders alone.
    fn install_with(&self, path: &str, script: &str, from: &str) -> (i32, String) {
        let mut shell = Command::new("/bin/sh");
        shell.env_clear().env("PATH", path).env("HOME", self.folder.path()).env("DMSCHAT_PREFIX", self.at("prefix"));
        shell.env("DMSCHAT_RELEASES", from).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes());
        let output = child.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(said).unwrap())
    }

    fn from(&self) -> String {
        self.folder.path().display().to_string()
    }

    /// What the installed program says, with the names of the files beside it.
    fn installed(&self) -> (String, Vec<String>) {
        let output = Command::new(self.at("prefix/bin/dmschat")).output().unwrap();
        let files =
            fs::read_dir(self.at("prefix/bin")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        (String::from_utf8(output.stdout).unwrap(), files.collect())
    }

    fn is_untouched(&self) {
        assert_eq!(self.installed(), ("old\n".to_owned(), vec!["dmschat".to_owned()]));
        assert!(!self.at("prefix/share/man").exists());
    }
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn script() -> String {
    let script = SCRIPT.replace("@REPO@", "owner/dmschat").replace("@VERSION@", "1.2.3");
    assert!(
        !script.contains("@REPO@")
            && !script.contains("@VERSION@")
            && script.contains("version=${DMSCHAT_VERSION:-1.2.3}")
    );
    script
}

#[test]
fn a_program_that_works_is_only_replaced_by_one_that_runs() {
    let works = "#!/bin/sh\necho new\n";
    let release = Release::new("1.2.3", works);
    let (code, said) = release.install(&script(), &release.from());
    assert_eq!(code, 0, "{said}");
    assert!(said.starts_with("new\n") && said.contains("is not in PATH"), "{said}");
    assert_eq!(release.installed(), ("new\n".to_owned(), vec!["dmschat".to_owned()]));
    assert!(release.at("prefix/share/man/man1/dmschat.1").is_file());

    for program in ["#!/bin/sh\nexit 3\n", "#!/nowhere/sh\n", "\x7fELF not a program"] {
        let release = Release::new("1.2.3", program);
        let (code, said) = release.install(&script(), &release.from());
        assert!(code == 1 && said.contains("does not run here; nothing was replaced"), "{code}: {said}");
        release.is_untouched();
    }
    let release = Release::new("1.2.3", works);
    fs::write(release.at("SHA256SUMS"), "").unwrap();
    let (code, said) = release.install(&script(), &release.from());
    assert!(code == 1 && said.contains("the checksum of"), "{said}");
    release.is_untouched();
    let (code, said) = release.install(&script(), "http://127.0.0.1:9");
    assert!(code == 1 && said.contains("is not https"), "{said}");
    release.is_untouched();
}

#[test]
fn a_script_that_was_cut_off_does_nothing_and_fails() {
    let release = Release::new("1.2.3", "#!/bin/sh\necho new\n");
    let script = script();
    let first = script.find('\n').unwrap() + 1;
    // Each end of a line and the byte before it; the last cut lacks the closing brace alone.
    let ends = script
        .match_indices('\n')
        .flat_map(|(at, _)| [at, at + 1])
        .filter(|at| (first + 1..script.len() - 1).contains(at));
    let mut tried = 0;
    for end in ends {
        let (code, said) = release.install(&script[..end], &release.from());
        assert_ne!(code, 0, "cut at {end}: {said}");
        tried += 1;
    }
    assert!(tried > 150);
    release.is_untouched();
}

/// A curl and a wget that act as the real ones do where a server sends them elsewhere: to `to`,
/// which they follow unless a flag forbids it. The file that they bring is that of the release.
fn downloaders(release: &Release, to: &str) {
    let folder = release.from();
    let last = "for url; do :; done; name=${url##*/}; out=; for arg; do [ \"$before\" = -o ] && out=$arg; \
                [ \"$before\" = -O ] && out=$arg; before=$arg; done";
    let curl = format!(
        "#!/bin/sh\n{last}\ncase \"$* {to}\" in *\"--proto =https --proto-redir =https\"*\" http:\"*) exit 1 ;; esac\n\
         cp {folder}/$name $out\n"
    );
    let wget = format!(
        "#!/bin/sh\n{last}\ncase \"$url $*\" in https://start/*--max-redirect=0*)\n\
         printf '  HTTP/1.1 302 Found\\r\\n  Location: {to}/%s\\r\\nLocation: {to}/%s [following]\\n' $name $name >&2\n\
         exit 8 ;; esac\ncp {folder}/$name $out\n"
    );
    for (name, text) in [("curl", curl), ("wget", wget)] {
        let own = release.at(name);
        fs::create_dir_all(&own).unwrap();
        write_program(&own.join(name), &text);
        let tools = "sh uname ldd grep mktemp sha256sum cut tar gzip mkdir cp mv rm sed tr tail cat head dirname";
        for tool in tools.split(' ') {
            let found = ["/usr/bin", "/bin"].map(|at| Path::new(at).join(tool)).into_iter().find(|path| path.exists());
            found.into_iter().for_each(|path| std::os::unix::fs::symlink(path, own.join(tool)).unwrap());
        }
    }
}

/// Whoever answers a redirect to http could send another archive with its own checksums.
#[test]
fn downloads_follow_redirects_to_https_alone() {
    for name in ["curl", "wget"] {
        for (to, is_followed) in [("https://other", true), ("http://other", false), ("ftp://other", false)] {
            if name == "curl" && to.starts_with("ftp") {
                continue;
            }
            let release = Release::new("1.2.3", "#!/bin/sh\necho new\n");
            downloaders(&release, to);
            let path = release.at(name).display().to_string();
            let (code, said) = release.install_with(&path, &script(), "https://start");
            assert_eq!(code == 0, is_followed, "{name} to {to}: {said}");
            if is_followed {
                assert_eq!(release.installed().0, "new\n");
            } else {
                release.is_untouched();
            }
        }
    }
}
