//! Prompts of the user: `/NAME TEXT` sends `prompts/NAME.md` of the config folder with the text in
//! it. Nothing in such a file is carried out: it is the text of a message.

use super::feed::LocalKind;
use super::state::App;
use super::text::clean_line;
use super::update::turns;
use crate::config::profile::names;
use crate::regular_file;
use std::path::{Path, PathBuf};

/// Largest file of a prompt.
const MAX_BYTES: u64 = 256 << 10;
/// Where the text goes that follows the command.
const INPUT: &str = "{{input}}";

fn file(app: &App, name: &str) -> PathBuf {
    app.setup.settings.dirs.prompts().join(format!("{name}.md"))
}

/// Names that can be typed as commands. Those of built-in commands are not used.
pub fn listed(folder: &Path) -> Vec<String> {
    names(folder, ".md").into_iter().filter(|name| !name.contains('.')).collect()
}

/// Whether there is a file of this name, which [`super::spelling::parse`] has read.
pub fn exists(app: &App, name: &str) -> bool {
    file(app, name).exists()
}

/// Says once that a prompt is not used because a command has its name.
pub fn say_hidden(app: &mut App, name: &str) {
    let path = file(app, name);
    if path.exists() && app.hidden_prompts.insert(name.to_owned()) {
        let path = clean_line(&path.display().to_string());
        app.note(LocalKind::Note, format!("{path} is not used: /{name} is a command; rename the file to use it"));
    }
}

/// Sends a prompt with this text in it. False if the line stays in the input.
pub fn send(app: &mut App, name: &str, input: &str) -> bool {
    let path = file(app, name);
    let shown = clean_line(&path.display().to_string());
    let text = match regular_file::read_text(&path, MAX_BYTES) {
        Ok(text) if !text.trim().is_empty() => filled(&text, input),
        Ok(_) => {
            app.error(format!("/{name}: {shown} is empty"));
            return false;
        }
        Err(error) => {
            app.error(format!("/{name}: {shown}: {error}"));
            return false;
        }
    };
    // A message that begins with a slash is written with two.
    turns::ask_text(app, if text.starts_with(['/', '!']) { format!("{}{text}", &text[..1]) } else { text })
}

/// The prompt with the input in its place, or after it.
fn filled(text: &str, input: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let text = text.trim_matches('\n');
    match text.contains(INPUT) {
        true => text.replace(INPUT, input),
        false if input.is_empty() => text.to_owned(),
        false => format!("{text}\n{input}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Dirs, Layer, Settings};
    use crate::ui::testing::*;

    #[test]
    fn the_input_takes_its_place_once_and_is_not_read_again() {
        assert_eq!(filled("Fix:\r\n{{input}}\r\nNow.\r\n", "a {{input}} b"), "Fix:\na {{input}} b\nNow.");
        assert_eq!(filled("{{input}}{{input}}", "x"), "xx");
        assert_eq!((filled("Fix\n", "x\ny"), filled("Fix\n\n", "")), ("Fix\nx\ny".to_owned(), "Fix".to_owned()));
    }

    fn app_in(folder: &Path) -> App {
        let dirs = Dirs { config: folder.into(), data: folder.into(), cache: folder.into() };
        let mut app = unloaded_with(Settings::from_layer(dirs, Layer::default()).unwrap(), 100, 24, Depth::Rgb, "dark");
        ready(&mut app, model(8, 4));
        app
    }

    #[test]
    fn a_prompt_is_sent_completed_and_listed_and_a_bad_one_stays_unsent() {
        let folder = tempfile::tempdir().unwrap();
        let prompts = folder.path().join("prompts");
        std::fs::create_dir(&prompts).unwrap();
        let write = |name: &str, text: &[u8]| std::fs::write(prompts.join(name), text).unwrap();
        write("review.md", b"/Review this: {{input}}");
        write("undo.md", b"never");
        write("a.b.md", b"never");
        write("latin.md", b"caf\xe9");
        write("empty.md", b"\n");
        std::fs::File::create(prompts.join("large.md")).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let mut app = app_in(folder.path());
        type_in(&mut app, "/revi");
        let labels: Vec<String> = app.completion.iter().flat_map(|c| &c.candidates).map(|c| c.label.clone()).collect();
        assert_eq!(labels, ["/review [TEXT]"]);
        app.input.set("");
        assert!(sent(&say(&mut app, "/review @me and /undo\nall")));
        assert_eq!(app.chat.path()[0].text, "/Review this: @me and /undo\nall");
        assert_eq!(app.history.entries().last().map(String::as_str), Some("/review @me and /undo\nall"));
        end(&mut app, crate::protocol::StopReason::End);
        for (name, why) in
            [("latin", "latin.md: not UTF-8"), ("large", "more than 262144 bytes"), ("empty", "is empty")]
        {
            app.input.set("");
            assert!(!sent(&say(&mut app, &format!("/{name} x"))));
            assert!(notice(&app).contains(why) && app.input.text().starts_with('/'), "{}", notice(&app));
        }
        for _ in 0..2 {
            app.input.set("");
            say(&mut app, "/undo");
        }
        let said = app.feed.locals.iter().filter(|l| l.text.contains("undo.md is not used: /undo is a command"));
        assert_eq!(said.count(), 1);
        app.input.set("");
        say(&mut app, "/help prompts");
        assert!(screen(&mut app).contains("/review"), "{}", screen(&mut app));
    }
}
