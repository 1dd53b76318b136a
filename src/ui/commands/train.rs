//! `/train`: makes a predictor for the loaded model in the background, and loads the model with it
//! when it is made. After a download, says how long that would take.

use super::prelude::*;
use crate::config::Adapter;
use crate::protocol::ModelInfo;
use crate::ui::text::ratio;
use crate::ui::training::{Report, Training, about};

pub fn run(app: &mut App, argument: &str) -> Done {
    let running = app.training.as_ref().filter(|training| !training.estimates);
    if argument == "stop" {
        let Some(Training { name, .. }) = running.cloned() else { return Err("nothing is being trained".into()) };
        app.training = None;
        app.emit(Effect::StopTraining);
        return app.tell(format!("the training for {name} stopped; nothing was changed"));
    }
    if let Some(training) = running {
        let (status, name, doing) = (training.status().unwrap_or_default(), &training.name, training.doing());
        return app.tell(format!("{name}: {status} ({doing}); /train stop ends it"));
    }
    let info = app.model()?;
    let name = info.identity.name.clone();
    if !forgets_nothing(&info) {
        let how = info.evicts_by.clone().unwrap_or_else(|| "as it was trained to".to_owned());
        return Err(format!("{name} forgets already: {how}").into());
    }
    if app.setup.settings.adapter == Adapter::None {
        return Err("the chat was started with --adapter none, which would leave the predictor out".into());
    }
    begin(app, &info, false);
    app.tell(format!("measuring how long the training for {name} takes; /train stop ends it"))
}

/// Whether a model keeps every token and could have a predictor.
fn forgets_nothing(info: &ModelInfo) -> bool {
    !info.is_builtin() && info.dms == "none" && info.policy.keeps_all()
}

fn begin(app: &mut App, info: &ModelInfo, estimates: bool) {
    let (loaded, name) = (app.engine.loaded.clone(), info.identity.name.clone());
    app.training = Some(Training { loaded, name, estimates, report: None });
    app.emit(Effect::Train { estimates });
}

/// After a download: has it estimated how long it takes to make the model forget.
pub fn downloaded(app: &mut App) {
    let Some(info) = app.engine.info.clone().filter(|info| forgets_nothing(info)) else { return };
    if app.training.is_none() && app.setup.settings.adapter == Adapter::Auto {
        begin(app, &info, true);
    }
}

/// Handles a report of the work.
pub fn reported(app: &mut App, report: Report) {
    let Some(training) = &mut app.training else { return };
    training.report = Some(report.clone());
    let Training { name, estimates, .. } = training.clone();
    match report {
        Report::Takes(seconds) if estimates => offer(app, &name, &format!(" ({})", about(seconds))),
        Report::Failed(_) if estimates => offer(app, &name, ""),
        Report::Takes(seconds) => {
            let text = "in the background; answers go on meanwhile, more slowly; /train stop ends it";
            app.note(LocalKind::Note, format!("training a predictor for {name}: {}, {text}", about(seconds)));
        }
        Report::Failed(why) => {
            app.training = None;
            app.note(LocalKind::Error, format!("no predictor for {name}: {why}; nothing was changed"));
        }
        Report::Done { .. } | Report::Made { .. } => {}
    }
}

fn offer(app: &mut App, name: &str, takes: &str) {
    app.training = None;
    app.emit(Effect::StopTraining);
    app.note(LocalKind::Note, format!("{name} forgets nothing yet; /train makes it forget{takes}"));
}

/// Loads the model with its predictor once it is made and nothing else runs.
pub fn load_when_idle(app: &mut App) {
    let idle = !app.is_busy() && app.engine.loading.is_none() && app.queue.is_empty();
    let made = app.training.as_ref().filter(|training| idle && matches!(training.report, Some(Report::Made { .. })));
    let Some(Training { loaded, name, report: Some(Report::Made { ratio: kept, kl }), .. }) = made.cloned() else {
        return;
    };
    app.training = None;
    let figures = format!("it keeps about 1 token in {} ({kl:.4} nats per token)", ratio(Some(kept)).replace('x', ""));
    if loaded != app.engine.loaded || app.engine.info.is_none() {
        app.note(
            LocalKind::Note,
            format!("the predictor for {name} is made: {figures}; {name} has it from its next start"),
        );
        return;
    }
    app.note(
        LocalKind::Note,
        format!("the predictor for {name} is made: {figures}; the model is loaded again with it"),
    );
    turns::load(app, &loaded);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;
    use crate::ui::event::AppEvent;
    use crate::ui::state::Loading;
    use crate::ui::testing::{Arc, app, model, say, screen, status, turn};
    use crate::ui::update::update;

    fn dense() -> ModelInfo {
        let mut info = model(8, 4);
        info.identity.name = "SmolLM2".into();
        (info.template.trusted, info.dms, info.policy) = (false, "none".into(), PolicyKind::Dense);
        info
    }

    #[test]
    fn a_downloaded_model_that_forgets_nothing_is_offered_training_that_then_runs_beside_the_chat() {
        let mut app = app(120, 40, 8, 4);
        app.engine.loading = Some(Loading { downloaded: true, ..Loading::new("smollm2") });
        let effects = update(&mut app, AppEvent::ModelReady(Arc::new(dense())));
        assert!(effects.iter().any(|e| matches!(e, Effect::Train { estimates: true })), "{effects:?}");
        update(&mut app, AppEvent::Trained(Report::Takes(420.0)));
        let wanted = "SmolLM2 forgets nothing yet; /train makes it forget (about 7 minutes)";
        assert!(screen(&mut app).contains(wanted) && app.training.is_none(), "{}", screen(&mut app));

        assert!(say(&mut app, "/train").iter().any(|e| matches!(e, Effect::Train { estimates: false })));
        update(&mut app, AppEvent::Trained(Report::Takes(420.0)));
        let half = Report::Done { doing: "text 3 of 9".into(), share: 0.34, left_s: 290 };
        update(&mut app, AppEvent::Trained(half));
        assert!(status(&mut app).contains("training 34 %, 5 min left"), "{}", status(&mut app));
        say(&mut app, "/train");
        assert!(screen(&mut app).contains("text 3 of 9"));
        // A turn that runs is answered first.
        turn(&mut app, "question", "", "answer");
        app.engine.recalling = true;
        assert!(update(&mut app, AppEvent::Trained(Report::Made { ratio: 3.0, kl: 0.012 })).is_empty());
        app.engine.recalling = false;
        let effects = update(&mut app, AppEvent::Tick);
        assert!(matches!(&effects[..], [Effect::Load(name)] if name == "smollm2"), "{effects:?}");
        assert!(screen(&mut app).contains("1 token in 3"), "{}", screen(&mut app));
    }

    #[test]
    fn training_is_stopped_refused_and_fails_in_words() {
        let mut app = app(120, 40, 8, 4);
        say(&mut app, "/train");
        assert!(screen(&mut app).contains("forgets already"), "{}", screen(&mut app));
        update(&mut app, AppEvent::ModelReady(Arc::new(dense())));
        assert!(app.training.is_none(), "nothing is estimated without a download");
        say(&mut app, "/train");
        assert!(say(&mut app, "/train stop").iter().any(|e| matches!(e, Effect::StopTraining)));
        say(&mut app, "/train stop");
        assert!(screen(&mut app).contains("nothing is being trained"));
        say(&mut app, "/train");
        update(&mut app, AppEvent::Trained(Report::Failed("it does not fit".into())));
        assert!(screen(&mut app).contains("no predictor for SmolLM2: it does not fit") && app.training.is_none());
    }
}
