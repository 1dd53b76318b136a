//! The input in the user's own editor.

use crate::regular_file;
use crate::system::signals::run_in_terminal;
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::Write;
use std::process::Command;

/// Limit of the text that comes back.
const MAX_BYTES: u64 = 64 << 20;

/// Lets `program` (else `$VISUAL`, `$EDITOR`, `vi`) edit a text; the terminal must be lent out.
pub fn edit(program: Option<&str>, text: &str) -> Result<String> {
    let from_env = || ["VISUAL", "EDITOR"].iter().find_map(|n| std::env::var(n).ok().filter(|v| !v.trim().is_empty()));
    let program = program.map(str::to_owned).or_else(from_env).unwrap_or_else(|| "vi".to_owned());
    let mut random = [0; 8];
    let _ = getrandom::fill(&mut random);
    let name: String = random.iter().map(|b| format!("{b:02x}")).collect();
    let path = std::env::temp_dir().join(format!("dmschat-{name}.md"));
    let mut options = fs::OpenOptions::new();
    let mut file = regular_file::private(options.write(true).create_new(true))
        .open(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let result = file
        .write_all(text.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
        .and_then(|()| run(&program, &path))
        .and_then(|()| {
            regular_file::read_text(&path, MAX_BYTES).with_context(|| format!("cannot read {}", path.display()))
        });
    let _ = fs::remove_file(&path);
    result
}

fn run(program: &str, path: &std::path::Path) -> Result<()> {
    // Editors are given with their flags: `code --wait`.
    let mut words = program.split_whitespace();
    let name = words.next().unwrap_or("vi");
    let status = run_in_terminal(Command::new(name).args(words).arg(path))
        .with_context(|| format!("cannot start the editor {name:?}; set EDITOR to one that exists"))?;
    if !status.success() {
        bail!("the editor {name:?} failed ({status}); the input is as it was");
    }
    Ok(())
}
