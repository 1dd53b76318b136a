//! `/profile`, which switches to other settings by name, and `/set --save`, which writes them.

use super::cache;
use super::prelude::*;
use crate::config::{Layer, List, OnOff, Origin, Settings, profile, save as write};
use crate::protocol::{DraftSource, SamplingOverrides};
use crate::ui::completion::Sources;
use crate::ui::state::ChatOptions;
use crate::ui::theme::AUTO;
use std::path::Path;

/// Name of no profile: the config file alone.
const NONE: &str = "none";

/// The profiles that there are.
pub fn names(_: &str, sources: &Sources) -> Vec<(String, String)> {
    let mut found: Vec<_> = (sources.profiles)().into_iter().map(|name| (name, String::new())).collect();
    found.push((NONE.to_owned(), "the config file alone".to_owned()));
    found
}

/// Lists the profiles, or switches to one.
pub fn run(app: &mut App, name: &str) -> Done {
    if name.is_empty() {
        return list(app);
    }
    turns::idle(app)?;
    if app.engine.loading.is_some() {
        return Err("a model is being loaded".into());
    }
    let before = app.setup.settings.clone();
    let wrong = |e: anyhow::Error| Refusal::Wrong(format!("/profile: {e:#}"));
    let to = Some(name.to_owned()).filter(|name| name != NONE);
    let origin = Origin { profile: to.clone(), ..before.origin.clone() };
    let after = Settings::load_in(before.dirs.clone(), &origin).map_err(wrong)?;
    // Keys that neither names stay as they are, also those that /set has changed.
    let of = |name: &Option<String>| name.as_ref().and_then(|name| profile::read(&before.dirs, name).ok());
    let [old, new] = [of(&before.origin.profile), of(&to)].map(Option::unwrap_or_default);
    let named: Vec<&'static str> = Layer::KEYS.iter().copied().filter(|key| old.sets(key) || new.sets(key)).collect();
    switch(app, &before, after, &named)?;
    let keys: Vec<&str> = new.keys().collect();
    let kept: Vec<String> = keys.iter().filter(|key| origin.flags.sets(key)).map(|key| key.replace('_', "-")).collect();
    let kept = if kept.is_empty() { String::new() } else { format!("; flags win: --{}", kept.join(", --")) };
    app.tell(match to {
        Some(name) => {
            format!("profile {name}: {}{kept}", if keys.is_empty() { "empty".into() } else { keys.join(", ") })
        }
        None => "no profile: the settings are those of the config file".to_owned(),
    })
}

fn list(app: &mut App) -> Done {
    let dirs = &app.setup.settings.dirs;
    let (folder, now) = (dirs.profiles(), app.setup.settings.origin.profile.clone());
    let place = clean_line(&folder.display().to_string());
    let names = profile::names(&folder, ".toml");
    if names.is_empty() {
        return app.tell(format!("no profiles in {place}; /set --save NAME makes one of the current settings"));
    }
    let row = |name: String| {
        let mark = if now.as_ref() == Some(&name) { '*' } else { ' ' };
        let keys = match profile::read(dirs, &name) {
            Ok(layer) => layer.keys().collect::<Vec<_>>().join(", "),
            Err(error) => clean_line(&format!("{error:#}")),
        };
        format!("{mark} {name:<18} {keys}")
    };
    let rows: Vec<String> = names.into_iter().map(row).collect();
    let head = format!("profiles in {place}; /profile NAME switches, * is in use");
    app.result(LocalKind::Table, format!("{head}\n{}", rows.join("\n")));
    Ok(())
}

/// Applies the settings of these keys: those of a chat at once, those of a model by loading it.
fn switch(app: &mut App, before: &Settings, after: Settings, keys: &[&'static str]) -> Result<(), Refusal> {
    let names = |key: &str| keys.contains(&key);
    let theme = match names("theme") {
        true => {
            let name = after.theme.as_deref().unwrap_or(AUTO);
            Some(app.setup.themes.load(name).map_err(|e| Refusal::Wrong(format!("/profile: {e:#}")))?)
        }
        false => None,
    };
    let model = if names("model") { after.model.clone() } else { app.engine.chosen.clone() };
    let loads = app.engine.chosen != model || keys.iter().any(|key| needs_load(key, before, &after));
    set_options(&mut app.options, &after, keys);
    app.setup.settings = after;
    let after = &app.setup.settings;
    let (eviction, ratio, mouse) = (after.eviction.unwrap_or(true), after.keep_ratio, after.mouse);
    let system = after.system.clone().unwrap_or_default();
    if let Some(theme) = theme {
        app.set_theme(theme);
    }
    if names("mouse") && app.mouse != mouse {
        app.mouse = mouse;
        app.emit(Effect::Mouse(mouse));
    }
    if names("system") && app.chat.system().unwrap_or_default() != system {
        app.chat.set_system(&system);
        app.store(Store::Sync);
    }
    if loads {
        if names("eviction") {
            app.engine.eviction = eviction;
        }
        if names("keep_ratio") {
            app.engine.dial = None;
        }
        turns::load(app, &model);
        return Ok(());
    }
    if names("eviction") && app.engine.eviction != eviction {
        // A cache that keeps everything has nothing to switch.
        let _ = cache::eviction(app, on_or_off(eviction));
    }
    if names("keep_ratio") && app.engine.dial.is_some() {
        let _ = cache::forget(app, &ratio.map_or("trained".to_owned(), |ratio| ratio.to_string()));
    }
    if names("kv_limit") {
        app.send(Engine::SetKvLimit(app.options.kv_limit));
    }
    if names("when_full") {
        app.send(Engine::SetWhenFull(app.options.when_full));
    }
    Ok(())
}

/// Whether a changed value of this key takes effect only when a model is loaded.
fn needs_load(key: &str, before: &Settings, after: &Settings) -> bool {
    let live = ["model", "eviction", "kv_limit"];
    let loads = Layer::group("model").contains(&key) || Layer::group("cache").contains(&key) || key == "checkpoints";
    let is_other = before.layer.value(key) != after.layer.value(key);
    match key {
        // Another source of drafts; off and on are the chat's.
        "draft" => is_other && after.draft != DraftSource::Off,
        _ => is_other && loads && !live.contains(&key),
    }
}

fn set_options(options: &mut ChatOptions, after: &Settings, keys: &[&'static str]) {
    let to = ChatOptions::of(after);
    for key in keys {
        match *key {
            "think" => options.think = to.think,
            "keep_thinking" => options.keep_thinking = to.keep_thinking,
            "seed" => options.seed = to.seed,
            "max_tokens" => options.max_tokens = to.max_tokens,
            "max_think" => options.max_think = to.max_think,
            "draft" => options.drafts = to.drafts,
            "width" => options.width = to.width,
            "kv_limit" => options.kv_limit = to.kv_limit,
            "when_full" => options.when_full = to.when_full,
            option if SamplingOverrides::options().any(|known| known.name == option) => {
                let value = after.layer.value(option).and_then(|value| value.parse().ok());
                options.sampling = options.sampling.with(option, value).unwrap_or(options.sampling);
            }
            _ => {}
        }
    }
}

/// Writes the current settings to a profile; without a name to the one in use, else to the config
/// file.
pub fn save(app: &mut App, name: &str) -> Done {
    let settings = &app.setup.settings;
    let profile = if name.is_empty() { settings.origin.profile.as_deref() } else { Some(name) };
    if profile == Some(NONE) {
        return Err(Refusal::Wrong(format!("/set --save: {NONE:?} stands for no profile; choose another name")));
    }
    let wrong = |e: anyhow::Error| Refusal::Wrong(format!("/set --save: {e:#}"));
    let (path, below) = settings.place_to_save(profile).map_err(wrong)?;
    let changed = write(&path, &current(app), &below).map_err(wrong)?;
    let shown = clean_line(&path.display().to_string());
    let starts = profile.map_or(String::new(), |name| format!("; dmschat -P {name} starts with them"));
    app.tell(match changed {
        0 => format!("{shown} has these settings already"),
        n => format!("saved: {} of {shown} changed{starts}", plural(n as u64, "setting")),
    })
}

/// The settings of the chat as it is now.
fn current(app: &App) -> Layer {
    let (settings, options) = (&app.setup.settings, &app.options);
    let mut layer = settings.layer.clone().with_sampling(&options.sampling);
    let loaded = if app.engine.loaded.is_empty() { &app.engine.chosen } else { &app.engine.loaded };
    if *loaded != settings.model {
        (layer.model, layer.adapter) = (Some(loaded.clone()), None);
    }
    // A relative path means another folder from elsewhere.
    layer.model = layer.model.map(|model| match Path::new(&model) {
        path if path.exists() => std::path::absolute(path).map_or(model.clone(), |path| path.display().to_string()),
        _ => model,
    });
    set_if(&mut layer.eviction, settings.eviction.unwrap_or(true), app.engine.eviction, |on| List::of(OnOff(on)));
    if let Some((ratio, trained)) = app.engine.dial {
        layer.keep_ratio = (ratio != trained).then(|| List::of((ratio * 100.0).round() / 100.0));
    }
    if options.drafts == 0 {
        layer.draft = Some(DraftSource::Off);
    } else if layer.draft == Some(DraftSource::Off) {
        layer.draft = None;
    }
    let started = ChatOptions::of(settings);
    set_if(&mut layer.think, started.think, options.think, OnOff);
    set_if(&mut layer.width, started.width, options.width, List::of);
    set_if(&mut layer.mouse, settings.mouse, app.mouse, OnOff);
    layer.keep_thinking = options.keep_thinking.map(OnOff);
    layer.seed = options.seed;
    layer.max_tokens = options.max_tokens;
    layer.max_think = options.max_think;
    layer.kv_limit = options.kv_limit.map(crate::config::ByteSize);
    layer.when_full = options.when_full;
    layer.system = app.chat.system().map(str::to_owned);
    layer
}

/// Sets a value that is no longer the one of the start.
fn set_if<T: PartialEq, V>(value: &mut Option<V>, start: T, now: T, make: impl FnOnce(T) -> V) {
    if start != now {
        *value = Some(make(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Dirs;
    use crate::ui::testing::*;

    fn app_in(folder: &Path) -> App {
        let dirs = Dirs { config: folder.into(), data: folder.join("data"), cache: folder.join("cache") };
        let settings = Settings::load_in(dirs, &Origin::default()).unwrap();
        let mut app = unloaded_with(settings, 100, 24, Depth::Rgb, "dark");
        app.engine.loaded = "demo".into();
        ready(&mut app, model(8, 4));
        app
    }

    fn command(app: &mut App, line: &str) -> Vec<Effect> {
        app.input.set("");
        say(app, line)
    }

    #[test]
    fn a_profile_changes_what_it_names_and_gives_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let profiles = folder.path().join("profiles");
        std::fs::create_dir(&profiles).unwrap();
        std::fs::write(folder.path().join("config.toml"), "top_k = 7\nmax_tokens = 50\n").unwrap();
        let write = |name: &str, text: &str| std::fs::write(profiles.join(name), text).unwrap();
        write("fast.toml", "top_k = 3\nthink = false\nsystem = 'Be brief.'\nmax_tokens = 20");
        write("other.toml", "model = 'other/model'");
        write("broken.toml", "top_k = 'x'");
        let mut app = app_in(folder.path());
        command(&mut app, "/set top_p 0.5");
        let effects = command(&mut app, "/profile fast");
        assert!(!effects.iter().any(|e| matches!(e, Effect::Load(_))), "{effects:?}");
        assert_eq!(notice(&app), "profile fast: max_tokens, think, system, top_k");
        let options = &app.options;
        assert_eq!((options.sampling.top_k, options.max_tokens, options.think), (Some(3), Some(20), false));
        assert_eq!((app.chat.system(), app.options.sampling.top_p), (Some("Be brief."), Some(0.5)));
        // A model is loaded; the other keys go back to the config file's.
        let effects = command(&mut app, "/profile other");
        assert!(effects.iter().any(|e| matches!(e, Effect::Load(name) if name == "other/model")), "{effects:?}");
        let options = &app.options;
        assert_eq!((options.sampling.top_k, options.max_tokens, options.think), (Some(7), Some(50), true));
        assert_eq!((app.chat.system(), app.options.sampling.top_p), (None, Some(0.5)));
        command(&mut app, "/profile none");
        assert!(notice(&app).contains("a model is being loaded"));
        app.engine.loading = None;
        for (name, why) in
            [("broken", "broken.toml:1: top_k"), ("fsat", "profiles: broken, fast, other"), ("../x", "cannot name")]
        {
            command(&mut app, &format!("/profile {name}"));
            assert!(notice(&app).contains(why), "{}", notice(&app));
            assert_eq!(app.setup.settings.origin.profile.as_deref(), Some("other"));
        }
        app.input.set("");
        say(&mut app, "/profile");
        let table = &app.feed.locals.last().unwrap().text;
        assert!(table.contains("* other") && table.contains("  fast") && table.contains("broken.toml:1"), "{table}");
    }

    #[test]
    fn settings_are_saved_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut app = app_in(folder.path());
        for line in ["/set temperature 0.25", "/set max_tokens 90", "/system Say \"hi\".", "/set --save calm"] {
            command(&mut app, line);
        }
        assert!(notice(&app).contains("3 settings of") && notice(&app).contains("dmschat -P calm"), "{}", notice(&app));
        let origin = Origin { profile: Some("calm".into()), ..Origin::default() };
        let read = Settings::load_in(app.setup.settings.dirs.clone(), &origin).unwrap();
        assert_eq!((read.sampling.temperature, read.max_tokens), (Some(0.25), Some(90)));
        assert_eq!(read.system.as_deref(), Some("Say \"hi\"."));
        command(&mut app, "/set --save calm");
        assert!(notice(&app).contains("has these settings already"));
        // Without a profile: the config file, which is not touched if it is none.
        let config = folder.path().join("config.toml");
        std::fs::write(&config, "# mine\nseed = [").unwrap();
        command(&mut app, "/set --save");
        assert!(notice(&app).contains("config.toml:2"), "{}", notice(&app));
        assert_eq!(std::fs::read_to_string(&config).unwrap(), "# mine\nseed = [");
        std::fs::write(&config, "# mine\nmax_tokens = 5 # few\n").unwrap();
        command(&mut app, "/set --save");
        let text = std::fs::read_to_string(&config).unwrap();
        assert!(text.starts_with("# mine\nmax_tokens = 90 # few\n") && text.contains("temperature = 0.25"), "{text}");
        command(&mut app, "/set --save a/b");
        assert!(notice(&app).contains("cannot name a profile"));
    }
}
