//! Writes settings to a config file or a profile. Comments, order and other keys stay.

use super::layer::MAX_BYTES;
use super::settings::Layer;
use crate::regular_file::temporary::Temporary;
use crate::regular_file::{self, make_private_folder, private};
use anyhow::{Context, Result, anyhow, bail};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::path::Path;
use toml::de::DeTable;

/// Groups of settings that belong to a terminal and not to a chat. The file keeps its own, but for
/// the exceptions.
const OTHERS: &str = "screen";
const EXCEPT: [&str; 2] = ["theme", "mouse"];

/// Writes `settings` to a file so that reading it over `below` gives them again: keys that `below`
/// or the default gives alike are not added. Fails, without a change, for a file that cannot be
/// read as settings. Returns how many keys changed.
pub fn save(path: &Path, settings: &Layer, below: &Layer) -> Result<usize> {
    // Says where the fault is.
    let old = Layer::from_file(path)?.unwrap_or_default();
    let text = match regular_file::read(path, MAX_BYTES) {
        Ok(bytes) => String::from_utf8(bytes)?,
        Err(e) if e.kind() == ErrorKind::NotFound => String::new(),
        Err(e) => return Err(anyhow!("{}: {e}", path.display())),
    };
    let changes = changes(&old, settings, below);
    if changes.is_empty() && path.exists() {
        return Ok(0);
    }
    let new = edited(&text, &changes).with_context(|| format!("{} is not changed", path.display()))?;
    write(path, &new).map_err(|e| anyhow!("{}: {e}; nothing was written", path.display()))?;
    Ok(changes.len())
}

/// Keys to set, or to remove (`None`).
type Change = (&'static str, Option<String>);

fn changes(old: &Layer, settings: &Layer, below: &Layer) -> Vec<Change> {
    let values = settings.entries().into_iter().zip(old.entries()).zip(below.entries());
    let change = |(((key, new, default), (_, old, _)), (_, below, _)): ((Entry, Entry), Entry)| {
        let differs = match (&new, &old) {
            _ if Layer::group(OTHERS).contains(&key) && !EXCEPT.contains(&key) => false,
            (Some(new), None) => *new != below.unwrap_or(default),
            (new, old) => new != old,
        };
        differs.then_some((key, new))
    };
    values.filter_map(change).collect()
}

type Entry = (&'static str, Option<String>, String);

/// The text with these keys set. New ones come last.
fn edited(text: &str, changes: &[Change]) -> Result<String> {
    let table = DeTable::parse(text).map_err(|e| anyhow!("{}", e.message()))?;
    let place = |key: &str| -> Option<(usize, Range<usize>)> {
        let (name, value) = table.get_ref().iter().find(|(name, _)| name.get_ref() == key)?;
        Some((name.span().start, value.span()))
    };
    let mut edits: Vec<(Range<usize>, &str)> = Vec::new();
    let mut added = String::new();
    for (key, value) in changes {
        match (place(key), value) {
            (Some((_, span)), Some(value)) => edits.push((span, value)),
            (Some((start, span)), None) => {
                let line = text[..start].rfind('\n').map_or(0, |at| at + 1);
                let end = text[span.end..].find('\n').map_or(text.len(), |at| span.end + at + 1);
                edits.push((line..end, ""));
            }
            (None, Some(value)) => added += &format!("{key} = {value}\n"),
            (None, None) => {}
        }
    }
    edits.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    let mut out = text.to_owned();
    for (range, value) in edits {
        out.replace_range(range, value);
    }
    if !added.is_empty() && !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    out += &added;
    let layer: Layer = toml::from_str(&out).map_err(|e| anyhow!("{}", e.message()))?;
    layer.check().map_err(|(key, what)| anyhow!("{key}: {what}"))?;
    Ok(out)
}

/// Replaces a file as a whole. A link stays one, and the file keeps its permissions.
fn write(path: &Path, text: &str) -> Result<()> {
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(e) if e.kind() == ErrorKind::NotFound && !path.is_symlink() => path.to_owned(),
        Err(e) => return Err(e.into()),
    };
    let folder = real.parent().context("it is in no folder")?;
    make_private_folder(folder)?;
    let permissions = std::fs::metadata(&real).map(|found| found.permissions()).ok();
    if permissions.as_ref().is_some_and(std::fs::Permissions::readonly) {
        bail!("the file is read-only");
    }
    let mut file = Temporary::create(folder, private(&mut OpenOptions::new()))?;
    file.file.write_all(text.as_bytes())?;
    if let Some(permissions) = permissions {
        file.file.set_permissions(permissions)?;
    }
    Ok(file.rename(&real)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(text: &str) -> Layer {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn keys_are_changed_in_their_place_and_comments_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        let text =
            "# mine\ntop_p = 0.9   # nucleus\nbell = true\nseed = 3\nsystem = \"\"\"a\nb\"\"\" # said\nmax_tokens = 9";
        std::fs::write(&path, text).unwrap();
        let settings = layer(
            "top_p = 0.5\nsystem = 'a \"b\"\\c\u{e9}'\nthink = false\nmodel = 'demo'\nmax_tokens = 9\nplain = true",
        );
        assert_eq!(save(&path, &settings, &Layer::default()).unwrap(), 4);
        let new = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            new,
            "# mine\ntop_p = 0.5   # nucleus\nbell = true\nsystem = \"a \\\"b\\\"\\\\c\u{e9}\" # said\nmax_tokens = 9\n\
             think = \"off\"\n"
        );
        // Nothing left to change; and what lies below need not be repeated.
        assert_eq!(save(&path, &settings, &Layer::default()).unwrap(), 0);
        let profile = dir.path().join("profiles").join("p.toml");
        save(&profile, &settings, &layer("think = 'off'\ntop_p = 0.4\nmodel = 'other'\nmax_tokens = 9")).unwrap();
        let read = Layer::from_file(&profile).unwrap().unwrap();
        assert_eq!((read.top_p, read.think, read.max_tokens), (Some(0.5), None, None));
        assert_eq!(read.model.as_deref(), Some("demo"));
    }

    #[test]
    fn a_file_that_is_no_config_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        for text in [&b"seed = "[..], b"sede = 1", b"seed = 'x'", b"\xff = 1", b"[table]\nseed = 1"] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", save(&path, &layer("top_p = 0.5"), &Layer::default()).unwrap_err());
            assert!(error.contains("config.toml") && !error.contains('\n'), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), text);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(save(&path, &layer("top_p = 0.5"), &Layer::default()).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_and_permissions_stay() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real.toml"), dir.path().join("config.toml"));
        std::fs::write(&real, "seed = 1\n").unwrap();
        std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink("real.toml", &link).unwrap();
        save(&link, &layer("seed = 2"), &Layer::default()).unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&real).unwrap(), "seed = 2\n");
        assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o644);
        std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o444)).unwrap();
        let error = format!("{:#}", save(&link, &layer("seed = 3"), &Layer::default()).unwrap_err());
        assert!(error.contains("read-only"), "{error}");
        // Only the one file is left: no temporary one.
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
