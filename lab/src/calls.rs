//! Reads outputs of models, one JSON object per line, and writes the tool calls that the server's
//! parser finds in them. `tests/serve/recorded_calls.py` compares them with the recorded calls.

use anyhow::{Context, Result};
use clap::Args;
use dmschat::serve::tools::{FORMATS, Heard, Parser, Tool};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, Write};

#[derive(Args, Debug)]
pub struct CallsArgs {
    /// Format in which the calls are written
    #[arg(long, value_name = "NAME")]
    format: String,
}

/// One output.
#[derive(Deserialize)]
struct Output {
    /// Its text as it arrives.
    parts: Vec<String>,
    /// The tools that the model had, in OpenAI's form.
    tools: Vec<Value>,
}

pub fn run(args: &CallsArgs) -> Result<u8> {
    let format = FORMATS.into_iter().find(|format| format.name() == args.format).with_context(|| {
        let known = FORMATS.map(|format| format.name()).join(", ");
        format!("--format {}: expected {known}", args.format)
    })?;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let Output { parts, tools } = serde_json::from_str(&line?).context("a line of stdin")?;
        let tool = |tool: Value| Tool {
            name: tool["function"]["name"].as_str().unwrap_or_default().to_owned(),
            parameters: tool["function"]["parameters"].clone(),
        };
        let (mut parser, mut heard) = (Parser::new(format, tools.into_iter().map(tool).collect(), false), Vec::new());
        parts.iter().for_each(|part| parser.push(part, &mut heard));
        parser.finish(&mut heard);
        let (mut content, mut calls) = (String::new(), Vec::new());
        for one in heard {
            match one {
                Heard::Text(text) => content += &text,
                Heard::Begun(_) | Heard::Arguments(_) | Heard::Complete => unreachable!("calls are heard whole"),
                Heard::Calls(_, more) => {
                    calls
                        .extend(more.into_iter().map(|call| json!({ "name": call.name, "arguments": call.arguments })));
                }
            }
        }
        writeln!(out, "{}", json!({ "content": content, "calls": calls }))?;
    }
    Ok(0)
}
