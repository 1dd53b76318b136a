//! minijinja, configured as transformers configures Jinja for chat templates. Reads no file and no
//! environment.

use super::guard::text_bytes_of;
use super::rewrite::rewritten;
use super::{filters, python};
use anyhow::{Result, anyhow, ensure};
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind, syntax::SyntaxConfig};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Instructions that one set of renderings may execute; a long chat needs a few hundred thousand.
const FUEL: u64 = 50_000_000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JinjaMessage {
    pub role: String,
    pub content: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reasoning_content: Option<String>,
    /// The same before calls without a text, as gpt-oss calls it there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub thinking: Option<String>,
    /// In OpenAI's form, but with arguments as objects.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tool_calls: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tool_call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Tools in a system message, where the template reads them there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tools: Option<String>,
}

impl JinjaMessage {
    pub fn new(role: &str, content: String) -> Self {
        Self {
            role: role.to_owned(),
            content,
            reasoning_content: None,
            thinking: None,
            tool_calls: None,
            tool_call_id: None,
            name: None,
            tools: None,
        }
    }
}

/// One rendering of a template.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub messages: Vec<JinjaMessage>,
    pub add_generation_prompt: bool,
    pub enable_thinking: bool,
    /// By the names that templates have for them.
    pub special_tokens: BTreeMap<String, String>,
    /// `2026-11-21T04:00:00`, for `strftime_now`.
    pub date: String,
    /// The tools that the model may call, in OpenAI's form.
    #[serde(default)]
    pub tools: Option<Json>,
}

/// Longest message of a template, such as the text of an exception.
const MESSAGE_CHARS: usize = 2000;

/// Renders every job to at most `text_bytes`. Only the number of instructions is bounded.
pub fn render(source: &str, text_bytes: usize, jobs: &[Job]) -> Result<Vec<String>> {
    // Jinja reads every line end as LF.
    let source = rewritten(&source.replace("\r\n", "\n").replace('\r', "\n"));
    let date = jobs.first().and_then(|j| j.date.parse().ok()).unwrap_or_default();
    let mut env = environment(date)?;
    env.add_template("chat", &source).map_err(|e| anyhow!("chat template: {}", one_line(&e)))?;
    let template = env.get_template("chat").map_err(|e| anyhow!("chat template: {}", one_line(&e)))?;
    jobs.iter()
        .map(|job| {
            let tools = job.tools.as_ref().map_or(Value::from(()), |tools| Value::from(Serde(tools)));
            let context = minijinja::context! {
                messages => Value::from(Serde(&job.messages)),
                tools => tools.clone(),
                // SmolLM3's name.
                xml_tools => tools,
                documents => Value::from(()),
                add_generation_prompt => job.add_generation_prompt,
                enable_thinking => job.enable_thinking,
                // Granite's and DeepSeek's name.
                thinking => job.enable_thinking,
                ..Value::from(Serde(&job.special_tokens))
            };
            let text = template.render(context).map_err(|e| anyhow!("chat template: {}", one_line(&e)))?;
            let n = text_bytes_of(&text);
            ensure!(
                n <= text_bytes,
                "chat template: it rendered {n} bytes, and the context holds at most {text_bytes}"
            );
            Ok(text)
        })
        .collect()
}

fn environment(date: jiff::civil::DateTime) -> Result<Environment<'static>> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(200);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(python::method);
    env.set_formatter(|out, state, value| match python::written(value) {
        Some(text) => Ok(out.write_str(&text)?),
        None => minijinja::escape_formatter(out, state, value),
    });
    filters::add_to(&mut env);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", move |format: String| -> Result<String, Error> {
        jiff::fmt::strtime::format(&format, date)
            .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
    });
    Ok(env)
}

/// The message of minijinja without the source excerpt.
fn one_line(error: &Error) -> String {
    if error.kind() == ErrorKind::OutOfFuel {
        return "it runs too many steps and was stopped".to_owned();
    }
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let text = match error.line() {
        Some(line) => format!("{what} (line {line} of the template)"),
        None => what,
    };
    cut(&text)
}

/// One line of at most [`MESSAGE_CHARS`] characters.
pub fn cut(text: &str) -> String {
    // Twice as many characters, because white space is joined.
    let begun: String = text.chars().take(2 * MESSAGE_CHARS).collect();
    let line = begun.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MESSAGE_CHARS) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None if begun.len() < text.len() => format!("{line}..."),
        None => line,
    }
}
