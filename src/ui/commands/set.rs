//! Settings: `/set`, and `/think`, `/keep-thinking`, `/theme` and `/system`, which have words of
//! their own.

use super::prelude::*;
use super::{pairs, profile, takes};
use crate::config::{ByteSize, KeymapName, Width};
use crate::protocol::{Thinking, sampling_table};
use crate::ui::completion::Sources;
use crate::ui::update::texts;
use crate::words::nearest;

/// Word of `/set` that writes the settings to a file.
const SAVE: &str = "--save";

/// A setting of `/set`.
struct Setting {
    name: &'static str,
    /// Accepted values; the meaning of special values follows a semicolon.
    takes: &'static str,
    /// Values that completion offers.
    values: &'static [&'static str],
    now: fn(&App) -> String,
    /// Sets a value; refused if it is not one. It may say more than that it was set.
    set: fn(&mut App, &str) -> Done,
}

const fn setting(
    name: &'static str,
    takes: &'static str,
    now: fn(&App) -> String,
    set: fn(&mut App, &str) -> Done,
) -> Setting {
    Setting { name, takes, values: &[], now, set }
}

impl Setting {
    const fn values(mut self, values: &'static [&'static str]) -> Self {
        self.values = values;
        self
    }
}

macro_rules! sampling {
    (@sampling $($(#[$_help:meta])* $name:ident: $type:ident = $_off:literal, $_least:literal to $_most:literal, $takes:literal;)* @kernel $($_kernel:tt)*) => {
        /// The options of sampling, as they are declared.
        const SAMPLING: &[Setting] = &[$(setting(
            stringify!($name),
            $takes,
            |app| app.sampling().$name.to_string(),
            |app, v| {
                let value = or("default", v, |v| v.parse::<$type>().ok().map(f64::from))?;
                let set = app.options.sampling.with(stringify!($name), value);
                app.options.sampling = set.ok_or(Refusal::Takes)?;
                Ok(())
            },
        )),*];
    };
}
sampling_table!(sampling {});

/// The other settings.
const SETTINGS: &[Setting] = &[
    setting(
        "seed",
        "a number, or random",
        |app| shown(app.options.seed, "random"),
        |app, v| {
            app.options.seed = or("random", v, |v| v.parse().ok())?;
            Ok(())
        },
    ),
    setting(
        "max_tokens",
        "a number, or none",
        |app| shown(app.options.max_tokens, "none"),
        |app, v| {
            app.options.max_tokens = or("none", v, |v| v.parse().ok().filter(|n| *n > 0))?;
            Ok(())
        },
    ),
    setting(
        "max_think",
        "tokens after which a thought is closed, none, or default",
        |app| shown(app.engine.info.as_ref().and_then(|info| info.max_think(app.options.max_think)), "none"),
        |app, v| {
            let tokens = |v: &str| or("none", v, |v| v.parse().ok()).ok().map(Option::unwrap_or_default);
            app.options.max_think = or("default", v, tokens)?;
            Ok(())
        },
    ),
    setting(
        "kv_limit",
        "bytes of cache (512MiB, 2GB), or none",
        |app| shown(app.options.kv_limit, "none"),
        |app, v| {
            app.options.kv_limit = or("none", v, |v| v.parse().ok().map(|bytes: ByteSize| bytes.0))?;
            app.send(Engine::SetKvLimit(app.options.kv_limit));
            Ok(())
        },
    ),
    setting(
        "keymap",
        "default or vim",
        |app| app.setup.keymap.name.to_string(),
        |app, v| {
            let name = v.parse().map_err(|_| Refusal::Takes)?;
            app.setup.keymap = app.setup.keymap.switched(name).map_err(|e| Refusal::Wrong(e.to_string()))?;
            app.vim.insert();
            Ok(())
        },
    )
    .values(&KeymapName::WORDS),
    setting("mouse", "on or off", |app| on_or_off(app.mouse).to_owned(), mouse).values(&["on", "off"]),
    setting(
        "think",
        "on or off",
        |app| on_or_off(app.options.think).to_owned(),
        |app, v| by(app, "think", v, matches!(v, "on" | "off")),
    )
    .values(&["on", "off"]),
    setting(
        "keep_thinking",
        "on, off or auto; auto is as the model's template says",
        |app| app.options.keep_thinking.map_or("auto", on_or_off).to_owned(),
        |app, v| by(app, "keep-thinking", v, matches!(v, "on" | "off" | "auto")),
    )
    .values(&["on", "off", "auto"]),
    setting(
        "width",
        "a number of chains, or auto; 1 is off",
        |app| app.options.width.to_string(),
        |app, v| by(app, "parallel", v, v.parse::<Width>().is_ok()),
    ),
    setting("theme", "the name of a theme", |app| app.theme.name.clone(), |app, v| by(app, "theme", v, true)),
    setting(
        "keep_ratio",
        "1 to 64, or trained",
        |app| app.engine.dial.map_or("trained".to_owned(), |(ratio, _)| format!("{ratio:.1}")),
        |app, v| by(app, "forget", v, v == "trained" || v.parse::<f32>().is_ok()),
    ),
    setting(
        "when_full",
        "forget, window, stop or default; default is forget for models trained to evict, stop for others",
        |app| shown(app.options.when_full, "default"),
        |app, v| {
            app.options.when_full = or("default", v, |v| v.parse().ok())?;
            app.send(Engine::SetWhenFull(app.options.when_full));
            Ok(())
        },
    )
    .values(&["forget", "window", "stop", "default"]),
    setting(
        "system",
        "a system prompt, or none",
        |app| app.chat.system().map_or("none".to_owned(), |text| truncate(&clean_line(text), 12)),
        |app, v| by(app, "system", v, true),
    ),
];

/// `None` is the word that unsets.
fn or<T>(word: &str, value: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Refusal> {
    let unset = value == word || (word != "default" && matches!(value, "none" | "off" | "random"));
    if unset { Ok(None) } else { read(value).map(Some).ok_or(Refusal::Takes) }
}

fn settings() -> impl Iterator<Item = &'static Setting> {
    SAMPLING.iter().chain(SETTINGS)
}

fn shown(value: Option<impl ToString>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}

/// Sets by another command, which says so.
fn by(app: &mut App, command: &str, value: &str, valid: bool) -> Done {
    let command = super::find(command).filter(|_| valid).ok_or(Refusal::Takes)?;
    if let Some((ran, _)) = &mut app.ran {
        *ran = command.name;
    }
    (command.run)(app, value)
}

/// Captures the mouse, or releases it to the terminal.
pub fn mouse(app: &mut App, value: &str) -> Done {
    app.mouse = match value {
        "on" => true,
        "off" => false,
        _ => return Err(Refusal::Takes),
    };
    app.info(if app.mouse { "the wheel scrolls the conversation" } else { "mouse released: select text as usual" });
    app.emit(Effect::Mouse(app.mouse));
    Ok(())
}

pub fn themes(_: &str, sources: &Sources) -> Vec<(String, String)> {
    (sources.themes)().into_iter().map(|theme| (theme, String::new())).collect()
}

/// Names of settings, or the values of the one that was typed.
pub fn complete(typed: &str, sources: &Sources) -> Vec<(String, String)> {
    let Some((name, _)) = typed.split_once(' ') else {
        let save = (format!("{SAVE} "), "write the settings to the config file or a profile".to_owned());
        return settings().map(|s| (format!("{} ", s.name), s.takes.to_owned())).chain([save]).collect();
    };
    if name == SAVE {
        return (sources.profiles)().into_iter().map(|profile| (format!("{SAVE} {profile}"), String::new())).collect();
    }
    let setting = settings().find(|s| s.name == name);
    let values = setting.map_or_else(Vec::new, |s| s.values.iter().map(|v| (*v, "")).collect());
    let values = if name == "theme" { themes(typed, sources) } else { pairs(&values) };
    values.into_iter().map(|(value, help)| (format!("{name} {value}"), help)).collect()
}

pub fn set(app: &mut App, argument: &str) -> Done {
    let (name, value) = argument.split_once(char::is_whitespace).unwrap_or((argument, ""));
    if name.is_empty() {
        let rows = settings().map(|s| format!("{:<20} {:<12} {}", s.name, (s.now)(app), s.takes));
        let table = rows.collect::<Vec<_>>().join("\n");
        app.result(LocalKind::Table, table);
        return Ok(());
    }
    if name == SAVE {
        return profile::save(app, value.trim());
    }
    let name = name.replace('-', "_");
    let Some(setting) = settings().find(|s| s.name == name) else {
        let near = nearest(&name, settings().map(|s| s.name));
        let names = || settings().map(|s| s.name).collect::<Vec<_>>().join(", ");
        let hint = near.map_or_else(|| format!("settings: {}", names()), |n| format!("did you mean {n}?"));
        return Err(Refusal::Wrong(format!("/set: no setting {:?}; {hint}", clean_line(&name))));
    };
    let value = value.trim();
    app.notice = None;
    if value.is_empty() {
        return app.tell(format!("{name} is {}; it takes {}", (setting.now)(app), setting.takes));
    }
    match (setting.set)(app, value) {
        Err(Refusal::Takes) => {
            let what = setting.takes.split(';').next().unwrap_or_default();
            return Err(Refusal::Wrong(takes(&format!("/set {name}"), what, value)));
        }
        Err(Refusal::Because(why)) => return Err(Refusal::Wrong(format!("/set {name}: {why}"))),
        other => other?,
    }
    if app.notice.is_none() {
        app.info(format!("{name} is {}", clean_line(value)));
    }
    Ok(())
}

pub fn think(app: &mut App, argument: &str) -> Done {
    if let Some(model) = &app.engine.info {
        match model.thinking() {
            Thinking::None => return Err(format!("{} has no thinking to switch", model.identity.name).into()),
            Thinking::Fixed => {
                return Err(format!("{} decides by itself whether it thinks", model.identity.name).into());
            }
            Thinking::Switchable => {}
        }
    }
    if argument.is_empty() {
        return app.tell(format!("thinking is {}; /think on or /think off", on_or_off(app.options.think)));
    }
    app.options.think = argument == "on";
    app.tell(match app.options.think {
        true => "the model thinks before it answers",
        false => "the model answers at once, from the next turn on",
    })
}

pub fn keep_thinking(app: &mut App, argument: &str) -> Done {
    match argument {
        "" => {}
        "auto" => app.options.keep_thinking = None,
        word => app.options.keep_thinking = Some(word == "on"),
    }
    app.tell(match app.options.keep_thinking {
        Some(true) => "earlier thoughts stay in the context, from the next turn on",
        Some(false) => "earlier thoughts leave the context, from the next turn on",
        None => "the model's template decides whether earlier thoughts stay",
    })
}

pub fn theme(app: &mut App, name: &str) -> Done {
    if name.is_empty() {
        let names = app.setup.themes.names().join(", ");
        return app.tell(format!("theme {}; themes: {names}", app.theme.name));
    }
    let theme = app.setup.themes.load(name).map_err(|e| Refusal::Wrong(format!("/theme: {e:#}")))?;
    app.set_theme(theme);
    app.setup.settings.layer.theme = Some(name.to_owned());
    app.tell(format!("theme {name}"))
}

pub fn system(app: &mut App, argument: &str) -> Done {
    if argument.is_empty() {
        return app.tell(match app.chat.system() {
            Some(system) => format!("system prompt: {}", clean_line(system)),
            None => "no system prompt; /system TEXT sets one".to_owned(),
        });
    }
    turns::idle(app)?;
    let (text, done) = if argument == "none" { ("", "removed") } else { (argument, "set") };
    app.chat.set_system(text);
    let again = match app.tokens() {
        0 => String::new(),
        _ => format!("; {}", texts::refill(app.engine.snapshot.as_deref())),
    };
    app.info(format!("system prompt {done}{again}"));
    app.store(Store::Sync);
    Ok(())
}
