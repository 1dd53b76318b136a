//! `/draft on|off|N`: whether a step tries tokens that may follow, and how many.

use super::prelude::*;
use crate::protocol::{DraftSource, MAX_DRAFTS};

/// Sets the most drafts of a step, or says how many there are.
pub fn run(app: &mut App, argument: &str) -> Done {
    let info = app.model()?;
    if info.most_drafts == 0 {
        let why = match &app.setup.settings.draft {
            DraftSource::Off => "the program was started with --draft off",
            _ => "this cache policy has none",
        };
        return Err(format!("no drafts can be tried: {why}").into());
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
        0 => "drafts are off: every step has one token".to_owned(),
        n => format!("drafts are on: a step tries up to {}, as far as that is faster", plural(n as u64, "token")),
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
            say(&mut app, &format!("/draft {argument}"));
            assert_eq!(app.options.drafts, drafts, "{argument}");
        }
        assert!(screen(&mut app).contains("/draft takes on, off, or the most tokens of a step"));
        let info = app.engine.info.clone().unwrap();
        app.engine.info = Some(Arc::new(ModelInfo { most_drafts: 0, ..(*info).clone() }));
        say(&mut app, "/draft on");
        assert!(screen(&mut app).contains("this cache policy has none"));
    }
}
