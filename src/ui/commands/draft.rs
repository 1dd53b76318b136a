//! `/draft on|off|N`: whether a step tries tokens that may follow, and how many.

use super::prelude::*;
use crate::protocol::MAX_DRAFTS;

/// Sets the most drafts of a step, or says how many there are.
pub fn run(app: &mut App, argument: &str) -> Done {
    let info = app.model()?;
    if info.most_drafts == 0 {
        return Err(format!("no drafts: policy {} has none", info.policy).into());
    }
    app.options.drafts = match argument {
        "" => app.options.drafts,
        "on" => MAX_DRAFTS,
        "off" => 0,
        n => match n.parse() {
            Ok(n @ 1..=MAX_DRAFTS) => n,
            _ => return Err(Refusal::Takes),
        },
    };
    app.tell(match app.options.drafts {
        0 => "drafts off: one token per step".to_owned(),
        n => format!("drafts on: up to {} per step while that is faster", plural(n as u64, "token")),
    })
}

#[cfg(test)]
mod tests {
    use crate::protocol::ModelInfo;
    use crate::ui::testing::*;

    #[test]
    fn drafts_are_switched_and_refused_where_there_are_none() {
        let mut app = app(100, 24, 8, 4);
        for (argument, drafts) in [("off", 0), ("3", 3), ("", 3), ("on", 15), ("16", 15), ("0", 15)] {
            app.input.set("");
            say(&mut app, &format!("/draft {argument}"));
            assert_eq!(app.options.drafts, drafts, "{argument}");
        }
        assert!(screen(&mut app).contains("/draft takes on, off, or the most tokens of a step"));
        let info = app.engine.info.clone().unwrap();
        app.engine.info = Some(Arc::new(ModelInfo { most_drafts: 0, ..(*info).clone() }));
        app.input.set("");
        say(&mut app, "/draft on");
        assert!(screen(&mut app).contains("no drafts: policy dms has none"));
        // Started with --draft off: none at first, and possible.
        let layer = crate::config::Layer { draft: Some(crate::protocol::DraftSource::Off), ..Default::default() };
        let settings = crate::config::Settings::from_layer(settings().dirs, layer).unwrap();
        let mut app = unloaded_with(settings, 100, 24, Depth::Rgb, "dark");
        assert_eq!(app.options.drafts, 0);
        ready(&mut app, model(8, 4));
        say(&mut app, "/draft on");
        assert_eq!(
            (app.options.drafts, notice(&app)),
            (15, "drafts on: up to 15 tokens per step while that is faster")
        );
    }
}
