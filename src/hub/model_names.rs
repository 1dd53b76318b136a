//! Names of models, and whether two names are of the same model.

/// Longest name that is read from a model's files, in bytes.
pub const MAX_NAME: usize = 200;

/// Names of a model in its files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    /// Names of the model itself; the first is the one that users see.
    pub own: Vec<String>,
    /// Models that it was made of.
    pub bases: Vec<String>,
}

impl Names {
    pub fn of(name: &str) -> Self {
        Self { own: vec![name.to_owned()], bases: Vec::new() }
    }

    pub fn first(&self) -> &str {
        self.own.first().map_or("", String::as_str)
    }

    /// Whether this is a name of the model itself, in whatever format its weights are.
    pub fn has(&self, name: &str) -> bool {
        self.own.iter().any(|own| same(own, name))
    }
}

/// Whether two names are of the same model. Owners, file endings and weight formats do not count.
pub fn same(a: &str, b: &str) -> bool {
    let [a, b] = [a, b].map(words);
    !a.is_empty() && a == b
}

fn words(name: &str) -> Vec<String> {
    let short = name.trim_end_matches('/').rsplit(['/', '\\']).next().unwrap_or(name).to_lowercase();
    let words = short.split(['-', '_', '.', ' ', ':']).filter(|word| !word.is_empty() && *word != "meta");
    let mut words: Vec<String> = words.map(str::to_owned).collect();
    if let Some(first) = words.iter().position(|word| is_format(word))
        && first > 0
        && words[first..].iter().all(|word| is_format(word) || is_part(word))
    {
        words.truncate(first);
    }
    words
}

/// Whether a word of a name begins the name of a format, such as `Q4` of `Q4_K_M`.
fn is_format(word: &str) -> bool {
    const FORMATS: &str = "gguf safetensors awq gptq fp8 fp16 bf16 f16 f32 int4 int8 4bit 8bit ud imatrix i1 quantized";
    let numbered = |before: &str| {
        word.strip_prefix(before).is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    FORMATS.split(' ').any(|format| format == word) || ["q", "iq", "w"].into_iter().any(numbered)
}

/// Whether a word is what may follow in the name of a format.
fn is_part(word: &str) -> bool {
    ["k", "m", "s", "l", "xs", "xxs", "xl", "nl", "0", "1", "gs128", "g128", "dynamic", "block"].contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_model_are_the_same_in_any_format() {
        let llama = "meta-llama/Llama-3.1-8B-Instruct";
        for name in [
            "Meta-Llama-3.1-8B-Instruct-Q4_K_M",
            "llama-3.1-8b-instruct.IQ4_XS.gguf",
            "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
            "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
            "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct/",
            "Llama 3.1 8B Instruct",
            "unsloth/Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
        ] {
            assert!(same(name, llama), "{name}");
        }
        for name in ["Llama-3.1-8B", "Llama-3.1-8B-Instruct-abliterated", "Llama-3.1-70B-Instruct", "Q4_K_M", ""] {
            assert!(!same(name, llama), "{name}");
        }
        assert!(same("Qwen3-8B-UD-Q4_K_XL", "Qwen/Qwen3-8B") && !same("Qwen3-8B-Base", "Qwen/Qwen3-8B"));
    }
}
