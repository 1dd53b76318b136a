//! The GGUF files of a repository: which file the name after a colon means, the names of its parts,
//! and the importance matrix beside them. Opens no file.

use super::model_names::same;
use std::collections::BTreeMap;

/// Most models of a repository that are looked through, and most parts of one.
pub const MOST: usize = 2000;
pub const MOST_PARTS: usize = 1000;
/// Most files that a message names.
const MAX_NAMED: usize = 40;
/// Largest importance matrix: the one of Qwen3-235B-A22B, with 128 experts, has 470 MB.
pub const MAX_IMATRIX_BYTES: u64 = 512 << 20;
/// In the names of importance matrices.
const IMATRIX: &str = "imatrix";
/// How their names end, the newer form first: `NAME.imatrix.gguf`, `imatrix_unsloth.gguf_file`,
/// `imatrix.dat`, `NAME.imatrix`.
const IMATRIX_ENDS: [&str; 4] = [".gguf", ".gguf_file", ".dat", ".imatrix"];

/// A model in a GGUF file, or in several parts.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufModel {
    /// Path of the file without `.gguf` and without the number of its part.
    stem: String,
    /// Its files, the first part first.
    pub files: Vec<String>,
    n_parts: usize,
    pub bytes: u64,
}

/// Whether a file that begins with these bytes is meant to be a GGUF file.
pub fn begins(raw: &[u8]) -> bool {
    raw.starts_with(b"GGUF")
}

/// The number of a part, from 1, and how many there are: `-00001-of-00003.gguf`.
pub fn part(name: &str) -> Option<(&str, usize, usize)> {
    let stem = name.strip_suffix(".gguf")?;
    let (rest, of) = stem.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    let (number, of) = (digits(number)?, digits(of)?);
    (1..=of).contains(&number).then_some((stem, number, of))
}

/// The name of a part.
pub fn part_name(stem: &str, number: usize, of: usize) -> String {
    format!("{stem}-{number:05}-of-{of:05}.gguf")
}

/// The models among the files of a repository, by name. Vision towers (`mmproj`) and importance
/// matrices are none.
pub fn models<'a>(files: impl Iterator<Item = (&'a str, u64)>) -> Vec<GgufModel> {
    let mut found: BTreeMap<(&str, usize), GgufModel> = BTreeMap::new();
    for (name, bytes) in files {
        let file = name.rsplit('/').next().unwrap_or(name).to_lowercase();
        let model = name.ends_with(".gguf") && !file.starts_with("mmproj") && !file.contains(IMATRIX);
        if !model {
            continue;
        }
        let (stem, number, n_parts) = part(name).unwrap_or((&name[..name.len() - ".gguf".len()], 1, 1));
        let new = || GgufModel { stem: stem.to_owned(), files: Vec::new(), n_parts, bytes: 0 };
        let model = found.entry((stem, n_parts)).or_insert_with(new);
        // Parts of a listing come in the order of their numbers.
        if number == model.files.len() + 1 {
            model.files.push(name.to_owned());
            model.bytes = model.bytes.saturating_add(bytes);
        }
    }
    found.into_values().filter(|model| model.files.len() == model.n_parts).collect()
}

/// The model whose name ends in `wanted`, in any case. Of several, the one whose name without
/// `wanted` all others begin with: `NAME-Q4_K_M` before `NAME-UD-Q4_K_M`.
pub fn pick<'a>(models: &'a [GgufModel], wanted: &str) -> Option<&'a GgufModel> {
    let wanted = wanted.to_lowercase();
    let wanted = wanted.strip_suffix(".gguf").unwrap_or(&wanted);
    let before = |model: &GgufModel| {
        let before = model.stem.to_lowercase().strip_suffix(wanted)?.to_owned();
        (before.is_empty() || before.ends_with(['-', '_', '.', '/'])).then_some(before)
    };
    let mut ends: Vec<(String, &GgufModel)> = models.iter().filter_map(|m| Some((before(m)?, m))).collect();
    ends.sort_by_key(|(before, _)| before.len());
    let (shortest, model) = ends.first()?;
    ends.iter().all(|(before, _)| before.starts_with(shortest)).then_some(*model)
}

/// Place in [`IMATRIX_ENDS`] of the name of an importance matrix; `None` for any other file.
fn imatrix_form(name: &str) -> Option<usize> {
    let file = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    IMATRIX_ENDS.iter().position(|end| file.contains(IMATRIX) && file.ends_with(end))
}

/// Whether a file is an importance matrix, by its name.
pub fn is_imatrix(name: &str) -> bool {
    imatrix_form(name).is_some()
}

/// The importance matrix of a model among files: the one that is named like the model, or else the
/// only one, of those in the newest form. `None` where several may be meant, and of a folder of
/// `several` models where none has its name.
pub fn imatrix<'a>(files: impl Iterator<Item = &'a str>, model: &str, several: bool) -> Option<&'a str> {
    let found: Vec<&str> = files.filter(|name| is_imatrix(name)).collect();
    let named = |name: &&str| {
        let file = name.rsplit('/').next().unwrap_or(name);
        let end = IMATRIX_ENDS.iter().find(|end| file.to_lowercase().ends_with(*end)).map_or(0, |end| end.len());
        same(file.get(..file.len() - end).unwrap_or(file), model)
    };
    let newest = |names: Vec<&'a str>| {
        let form = names.iter().filter_map(|name| imatrix_form(name)).min();
        let mut names = names.into_iter().filter(|name| imatrix_form(name) == form);
        names.next().filter(|_| names.next().is_none())
    };
    let own: Vec<&str> = found.iter().copied().filter(named).collect();
    if own.is_empty() && !several { newest(found) } else { newest(own) }
}

impl GgufModel {
    /// The file's name without its folder, its number and what follows.
    pub fn name(&self) -> &str {
        self.stem.rsplit('/').next().unwrap_or(&self.stem)
    }

    /// The shortest end of its name that [`pick`] finds it by: usually the type of its matrices.
    pub fn label<'a>(&'a self, models: &[Self]) -> &'a str {
        let cuts = self.stem.rmatch_indices(['-', '.', '/']).map(|(at, _)| &self.stem[at + 1..]);
        let is_type = |end: &&str| {
            let end = end.split(['-', '.']).next_back().unwrap_or(end).to_uppercase();
            ["Q", "IQ", "TQ", "F", "BF", "MXFP"]
                .iter()
                .any(|kind| end.strip_prefix(kind).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())))
        };
        let found = |end: &&str| pick(models, end).is_some_and(|model| model.stem == self.stem);
        cuts.filter(is_type).find(found).unwrap_or(&self.stem)
    }
}

/// `Q4_K_M (4.9 GB), Q8_0 (8.5 GB)`
pub fn listed(models: &[GgufModel]) -> String {
    if models.len() > MOST {
        return format!("{} GGUF models", models.len());
    }
    let name = |m: &GgufModel| format!("{} ({:.1} GB)", m.label(models), m.bytes as f64 / 1e9);
    let mut names: Vec<String> = models.iter().take(MAX_NAMED).map(name).collect();
    if models.len() > MAX_NAMED {
        names.push(format!("{} more", models.len() - MAX_NAMED));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_behind_the_colon_means_one_file() {
        let names = [
            "M-8B-BF16.gguf",
            "M-8B-IQ4_XS.gguf",
            "M-8B-Q4_K_M.gguf",
            "M-8B-Q8_0/M-8B-Q8_0-00001-of-00002.gguf",
            "M-8B-Q8_0/M-8B-Q8_0-00002-of-00002.gguf",
            "M-8B-Q6_K-00001-of-00002.gguf",
            "M-8B-UD-Q4_K_M.gguf",
            "M-8B.imatrix.gguf",
            "mmproj-F16.gguf",
            "other-Q5_K_M.gguf",
            "M-8B-Q5_K_M.gguf",
        ];
        let models = models(names.iter().map(|name| (*name, 100_000_000)));
        let found = |wanted| pick(&models, wanted).map(|m| m.files[0].as_str());
        assert_eq!(found("q4_k_m"), Some(names[2]));
        assert_eq!(found("UD-Q4_K_M"), Some(names[6]));
        assert_eq!(found("m-8b-iq4_xs.gguf"), Some(names[1]));
        assert_eq!(pick(&models, "Q8_0").unwrap().files, names[3..5]);
        // The ends of other names; a part that is missing; two models; no models.
        for wanted in ["F16", "4_XS", "Q6_K", "Q5_K_M", "imatrix", ""] {
            assert_eq!(found(wanted), None, "{wanted}");
        }
        let wanted = "BF16 (0.1 GB), IQ4_XS (0.1 GB), Q4_K_M (0.1 GB), 8B-Q5_K_M (0.1 GB), Q8_0 (0.2 GB), \
                      UD-Q4_K_M (0.1 GB), other-Q5_K_M (0.1 GB)";
        assert_eq!(listed(&models), wanted);
    }

    /// Names as publishers have them.
    #[test]
    fn an_importance_matrix_is_found_by_its_name() {
        let find = |files: &[&'static str], several| imatrix(files.iter().copied(), "Org_M-8B-Q4_K_M", several);
        let (old, new) = ("imatrix_unsloth.dat", "imatrix_unsloth.gguf_file");
        assert_eq!(find(&["M-8B-Q4_K_M.gguf", old, "imatrix.txt"], false), Some(old));
        assert_eq!(find(&[old, new], false), Some(new));
        assert_eq!(find(&[old], true), None);
        for own in ["Org_M-8B-imatrix.gguf", "Org_M-8B.imatrix", "org_m-8b.i1-imatrix.dat", "a/Org_M-8B.imatrix.gguf"] {
            assert_eq!(find(&[old, own], true), Some(own));
            assert_eq!(find(&["N-8B-imatrix.gguf", own], false), Some(own));
        }
        // Of another model, and of one of two.
        assert_eq!(find(&["M-9B.imatrix.gguf", "M-7B.imatrix.gguf"], false), None);
        assert_eq!(find(&[], false), None);
    }
}
