//! `dmschat connect NAME`: the settings with which another program uses a server of dmschat.

use super::args::ConnectArgs;
use super::output::{self, wrong_use};
use super::serve::keys;
use crate::words::nearest;
use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use std::process::Command;

/// A server that is connected to.
struct Server {
    /// Its address, without `/v1`.
    url: String,
    key: Option<String>,
    model: String,
    /// Tokens of its context, if they are known.
    context: Option<u64>,
}

impl Server {
    fn base(&self) -> String {
        format!("{}/v1", self.url)
    }

    /// A key, which clients want even where the server wants none.
    fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("none")
    }
}

/// Variables of the environment, by name.
type Variables = Vec<(&'static str, String)>;
/// Makes the lines of a file.
type Lines = fn(&Server) -> String;
/// Makes the variables and the arguments of one start.
type Start = fn(&Server) -> (Variables, Vec<String>);

/// A program that can use a server.
struct Client {
    name: &'static str,
    program: &'static str,
    /// How it is installed.
    install: &'static str,
    /// A file of its settings, and what belongs into it.
    file: Option<(&'static str, Lines)>,
    /// Variables and arguments that say the same for one start. `None`: it reads its file only.
    start: Option<Start>,
}

const CLIENTS: [Client; 6] = [
    Client {
        name: "codex",
        program: "codex",
        install: "npm install -g @openai/codex",
        file: Some(("~/.codex/config.toml", codex_file)),
        start: Some(|server| {
            let set = codex_settings(server).into_iter();
            let args = set.flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]);
            (server.key.iter().map(|key| (CODEX_KEY, key.clone())).collect(), args.collect())
        }),
    },
    Client {
        name: "claude-code",
        program: "claude",
        install: "npm install -g @anthropic-ai/claude-code",
        file: None,
        start: Some(|server| {
            let env = vec![
                ("ANTHROPIC_BASE_URL", server.url.clone()),
                ("ANTHROPIC_AUTH_TOKEN", server.key().to_owned()),
                ("ANTHROPIC_MODEL", server.model.clone()),
                ("ANTHROPIC_DEFAULT_HAIKU_MODEL", server.model.clone()),
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ];
            (env, Vec::new())
        }),
    },
    Client {
        name: "opencode",
        program: "opencode",
        install: "npm install -g opencode-ai",
        file: Some(("~/.config/opencode/opencode.json", |server| format!("{:#}\n", opencode(server)))),
        start: Some(|server| (vec![("OPENCODE_CONFIG_CONTENT", opencode(server).to_string())], Vec::new())),
    },
    Client {
        name: "aider",
        program: "aider",
        install: "pip install aider-chat",
        file: None,
        start: Some(|server| {
            let env = vec![("OPENAI_API_BASE", server.base()), ("OPENAI_API_KEY", server.key().to_owned())];
            let args =
                ["--model".to_owned(), format!("openai/{}", server.model), "--no-show-model-warnings".to_owned()];
            (env, args.into())
        }),
    },
    Client {
        name: "crush",
        program: "crush",
        install: "npm install -g @charmland/crush",
        file: Some(("~/.config/crush/crushrc", crush)),
        start: None,
    },
    Client {
        name: "openwebui",
        program: "open-webui",
        install: "pip install open-webui",
        file: None,
        start: Some(|server| {
            let env = vec![
                ("OPENAI_API_BASE_URL", server.base()),
                ("OPENAI_API_KEY", server.key().to_owned()),
                ("ENABLE_OLLAMA_API", "false".to_owned()),
            ];
            // Its own port is the one that a server of dmschat has.
            (env, ["serve", "--port", "3000"].map(str::to_owned).into())
        }),
    },
];

/// The variable from which Codex reads the key.
const CODEX_KEY: &str = "DMSCHAT_SERVER_KEY";

/// Settings of Codex by their path, as TOML.
fn codex_settings(server: &Server) -> Vec<(&'static str, String)> {
    let text = |text: &str| Value::from(text).to_string();
    let mut set = vec![
        ("model", text(&server.model)),
        ("model_provider", text("dmschat")),
        ("model_providers.dmschat.name", text("dmschat")),
        ("model_providers.dmschat.base_url", text(&server.base())),
        ("model_providers.dmschat.wire_api", text("responses")),
    ];
    set.extend(server.key.is_some().then(|| ("model_providers.dmschat.env_key", text(CODEX_KEY))));
    set.extend(server.context.map(|context| ("model_context_window", context.to_string())));
    set
}

fn codex_file(server: &Server) -> String {
    let lines: Vec<String> = codex_settings(server).iter().map(|(name, value)| format!("{name} = {value}")).collect();
    lines.join("\n") + "\n"
}

fn opencode(server: &Server) -> Value {
    let mut model = json!({ "name": server.model });
    if let Some(context) = server.context {
        model["limit"] = json!({ "context": context, "output": context / 4 });
    }
    json!({
        "$schema": "https://opencode.ai/config.json",
        "model": format!("dmschat/{}", server.model),
        "provider": {
            "dmschat": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "dmschat",
                "options": { "baseURL": server.base(), "apiKey": server.key() },
                "models": { server.model.as_str(): model },
            },
        },
    })
}

fn crush(server: &Server) -> String {
    let (base, key) = (quoted(&server.base()), quoted(server.key()));
    let mut lines = format!("provider add dmschat --type openai-compat --base-url {base} --api-key {key}\n");
    lines += &format!("model add {} --name {}", quoted(&format!("dmschat/{}", server.model)), quoted(&server.model));
    if let Some(context) = server.context {
        lines += &format!(" --context-window {context} --default-max-tokens {}", context / 4);
    }
    lines + "\n"
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Everything that is printed about a client.
fn printed(client: &Client, server: &Server) -> String {
    let mut text = String::new();
    if let Some((path, lines)) = client.file {
        text += &format!("# {path}\n{}", lines(server));
    }
    if let Some(start) = client.start {
        let (env, args) = start(server);
        if client.file.is_some() {
            text += "\n# or, for one start:\n";
        }
        let env = env.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let words = env.chain([client.program.to_owned()]).chain(args.iter().map(|arg| quoted(arg)));
        text += &(words.collect::<Vec<_>>().join(" \\\n  ") + "\n");
    }
    text
}

pub fn run(args: &ConnectArgs) -> Result<u8> {
    let names = CLIENTS.map(|client| client.name);
    let client = CLIENTS.iter().find(|client| client.name == args.client).ok_or_else(|| {
        let near =
            nearest(&args.client, names.into_iter()).map_or_else(String::new, |name| format!("; did you mean {name}?"));
        wrong_use(format!("{:?} is not a client (known: {}){near}", args.client, names.join(", ")))
    })?;
    let url = args.url.trim_end_matches('/');
    let url = url.strip_suffix("/v1").unwrap_or(url).to_owned();
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(wrong_use(format!("--url {}: expected an address such as http://127.0.0.1:8080", args.url)));
    }
    let key = args.api_key_file.as_deref().map(keys).transpose()?.and_then(|keys| keys.into_iter().next());
    let (model, context) = (args.name.clone(), args.context);
    let server = Server { url, key, model, context };
    if !args.run {
        output::out(&printed(client, &server))?;
        return Ok(output::OK);
    }
    let Some(start) = client.start else {
        let path = client.file.map_or("its file", |(path, _)| path);
        return Err(wrong_use(format!(
            "{} reads its settings from a file: put what dmschat connect {} prints into {path}, and start it",
            client.name, client.name
        )));
    };
    let (env, own) = start(&server);
    let status = Command::new(client.program).envs(env).args(own).args(&args.rest).status().map_err(|error| {
        anyhow!("{} cannot be started: {error}; it is installed by: {}", client.program, client.install)
    })?;
    // Ended by a signal.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(output::PANICKED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(context: Option<u64>) -> Server {
        let (url, model) = ("http://127.0.0.1:8080".to_owned(), "ORG/it's".to_owned());
        Server { url, key: None, model, context }
    }

    #[test]
    fn what_is_printed_has_the_address_and_the_model_and_can_be_read() {
        for context in [None, Some(4096)] {
            let server = server(context);
            for client in &CLIENTS {
                let text = printed(client, &server);
                assert!(text.contains("http://127.0.0.1:8080"), "{text}");
                // This one lists the models itself.
                assert!(text.contains("ORG/it") || client.name == "openwebui", "{text}");
                assert!(client.file.is_some() || client.start.is_some(), "{}", client.name);
            }
            let codex: toml::Table = codex_file(&server).parse().unwrap();
            assert_eq!(codex["model_providers"]["dmschat"]["base_url"].as_str(), Some("http://127.0.0.1:8080/v1"));
            assert_eq!(codex["model"].as_str(), Some("ORG/it's"));
            assert_eq!(opencode(&server)["provider"]["dmschat"]["models"]["ORG/it's"]["name"], "ORG/it's");
        }
        assert_eq!(quoted("ORG/it's"), r"'ORG/it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
