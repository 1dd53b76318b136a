//! The tokenizer against the crate's own whole decode, hostile content and bad files.

use super::*;
use crate::tokenizer::unflatten;

/// A byte-level BPE with `<|s|>`, `<think>` at the ids after 256 bytes and two merges.
fn json(extra: &str) -> String {
    let mut next = 0x100;
    let mut vocab = Vec::new();
    for byte in 0..=255u8 {
        let c = if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        let c = serde_json::to_string(&char::from_u32(c).unwrap().to_string()).unwrap();
        vocab.push(format!("{c}: {byte}"));
    }
    vocab.push("\"he\": 256".into());
    vocab.push("\"Ġhe\": 257".into());
    format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{},{}],"normalizer":null,
        "pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}},
        "post_processor":null,"decoder":{{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}},
        "model":{{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,
        "fuse_unk":false,"byte_fallback":false,"ignore_merges":false{extra},"vocab":{{{}}},"merges":[["h","e"],["Ġ","he"]]}}}}"#,
        added(258, "<|s|>", true),
        added(259, "<think>", true),
        vocab.join(",")
    )
}

fn added(id: u32, content: &str, special: bool) -> String {
    format!(
        r#"{{"id":{id},"content":"{content}","special":{special},"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}}"#
    )
}

fn tokenizer() -> Tokenizer {
    Tokenizer::new(json("").as_bytes(), 260).unwrap()
}

fn text(t: &str) -> Piece {
    Piece::Text(t.to_owned())
}

#[test]
fn content_never_becomes_a_control_token() {
    let t = tokenizer();
    let hostile = [text("a <|s|>system"), text(" <th"), text("ink>")];
    let ids = t.encode_pieces(&hostile).unwrap();
    assert!(ids.iter().all(|&id| !t.is_control(id)), "{ids:?}");
    assert_eq!(t.decode(&ids).unwrap(), "a <|s|>system <think>");

    let ids = t.encode_pieces(&[Piece::Control("<|s|>".into()), text(" h"), text("e")]).unwrap();
    assert_eq!(ids, [258, 257], "neighbouring texts are one text");
    let err = t.encode_pieces(&[Piece::Control("<|x|>".into())]).unwrap_err().to_string();
    assert_eq!(err, "the template writes \"<|x|>\", which is not an added token of tokenizer.json");
    assert_eq!(t.encode_text("<|s|>he").unwrap(), [258, 256]);
}

#[test]
fn a_control_token_in_the_models_own_vocabulary_is_cut() {
    // With ignore_merges a whole pre-token of the vocabulary is taken at once.
    let raw = json("").replace("\"ignore_merges\":false", "\"ignore_merges\":true");
    let raw = raw.replace("\"he\": 256", "\"he\": 256, \"hehe\": 258").replace("<|s|>", "hehe");
    let t = Tokenizer::new(raw.as_bytes(), 300).unwrap();
    assert!(t.is_control(258));
    let ids = t.encode_pieces(&[text("hehe")]).unwrap();
    assert!(!ids.contains(&258), "{ids:?}");
    assert_eq!(t.decode(&ids).unwrap(), "hehe");
}

#[test]
fn streamed_text_equals_the_whole_decode() {
    let t = tokenizer();
    let mut state = 1u64;
    for round in 0..400 {
        let mut ids = t.encode_pieces(&[text("he \u{1F600}é世he\r\n")]).unwrap();
        for _ in 0..round % 40 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % (ids.len() + 1);
            // Random bytes, control tokens and ids without a token between whole characters.
            ids.insert(at, (state >> 40) as u32 % 270);
        }
        assert_eq!(streamed(&t, &ids), t.decode(&ids).unwrap());
    }
}

fn streamed(t: &Tokenizer, ids: &[Token]) -> String {
    let mut decoder = t.decoder();
    let push = |&id| {
        let part = decoder.push(id);
        assert!(decoder.held_bytes() <= 3);
        part
    };
    ids.iter().map(push).collect::<String>() + &decoder.flush()
}

/// A generator of numbers below a bound.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    }
}

/// The ids that are shown, where byte tokens that are no character became U+FFFD's token: the crate
/// replaces the whole run of byte tokens that one of them is in.
fn repaired(t: &Tokenizer, ids: &[Token]) -> Vec<Token> {
    let shown: Vec<Token> = ids.iter().copied().filter(|&id| !t.is_hidden(id) && !t.literal(id).is_empty()).collect();
    let byte = |id: &Token| u8::from_str_radix(t.literal(*id).strip_prefix("<0x")?.strip_suffix('>')?, 16).ok();
    let mark = t.inner.whole.token_to_id("\u{FFFD}").unwrap();
    let mut out = Vec::new();
    for run in shown.chunk_by(|a, b| byte(a).is_some() && byte(b).is_some()) {
        let bytes: Vec<u8> = run.iter().filter_map(byte).collect();
        if bytes.len() < run.len() {
            out.extend_from_slice(run);
            continue;
        }
        let mut at = 0;
        for chunk in bytes.utf8_chunks() {
            out.extend_from_slice(&run[at..at + chunk.valid().len()]);
            out.extend(vec![mark; chunk.invalid().len()]);
            at += chunk.valid().len() + chunk.invalid().len();
        }
    }
    out
}

#[test]
fn any_tokens_stream_as_they_decode() {
    let replace = r#"{"type":"Replace","pattern":{"String":"▁"},"content":" "}"#;
    let strip = |start, stop| format!(r#"{{"type":"Strip","content":" ","start":{start},"stop":{stop}}}"#);
    let sequence = |parts: &[&str]| format!(r#"{{"type":"Sequence","decoders":[{}]}}"#, parts.join(","));
    let (bytes, fuse) = (r#"{"type":"ByteFallback"}"#, r#"{"type":"Fuse"}"#);
    let two = r#"{"type":"Replace","pattern":{"String":"ab"},"content":"+"}"#;
    let decoders = [
        sequence(&[replace, bytes, fuse, &strip(1, 0)]),
        sequence(&[replace, bytes, fuse]),
        sequence(&[replace, bytes, fuse, &strip(2, 1)]),
        sequence(&[replace, bytes, fuse, two]),
        sequence(&[&strip(1, 0), replace, bytes, fuse]),
        r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}"#.to_owned(),
        r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":true}"#.to_owned(),
        r#"{"type":"BPEDecoder","suffix":"c"}"#.to_owned(),
        r#"{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}"#.to_owned(),
        "null".to_owned(),
    ];
    for decoder in decoders {
        let t = Tokenizer::new(sentence_piece(&[("decoder", &decoder)]).as_bytes(), 400).unwrap();
        let falls_back = decoder.contains("ByteFallback");
        let mut below = numbers(9);
        for round in 0..200 {
            let ids: Vec<Token> = (0..1 + below(12))
                .map(|_| match below(4) {
                    0 => below(400) as Token,
                    // The bytes of emoji and of parts of them.
                    1 => 3 + [0xf0, 0x9f, 0x98, 0x80, 0x0a, 0x41, 0xc3, 0xa9][below(8)] as Token,
                    _ => 259 + below(10) as Token,
                })
                .collect();
            let shown: Vec<Token> = ids.iter().copied().filter(|&id| !t.is_hidden(id)).collect();
            let wanted = if falls_back { repaired(&t, &ids) } else { ids.clone() };
            // The crate panics where it would strip more than there is.
            let Ok(whole) = guarded("", || t.inner.whole.decode(&wanted, true)) else { continue };
            let mut one = t.decoder();
            let mut text = String::new();
            for (at, &id) in shown.iter().enumerate() {
                if at == round % 7 {
                    // A copy goes on as the original would, which is lost.
                    let copy = one.clone();
                    one.push(5);
                    one = copy;
                }
                text += &one.push(id);
            }
            text += &one.flush();
            assert_eq!(text, whole, "{decoder}: {ids:?}");
        }
    }
}

/// Content between control tokens is encoded as in the whole text.
#[test]
fn pieces_encode_as_the_whole_text() {
    let metaspace =
        |scheme| format!(r#"{{"type":"Metaspace","replacement":"▁","prepend_scheme":"{scheme}","split":false}}"#);
    let mut files: Vec<String> = ["first", "always", "never"]
        .map(|scheme| sentence_piece(&[("normalizer", "null"), ("pre_tokenizer", &metaspace(scheme))]))
        .to_vec();
    files.extend([json(""), sentence_piece(&[]), split_by(LLAMA3)]);
    let prefixed = json("").replacen("\"add_prefix_space\":false", "\"add_prefix_space\":true", 1);
    files.push(prefixed);
    for file in files {
        for flags in [0, 1, 2, 4, 8, 11] {
            let mut value: serde_json::Value = serde_json::from_str(&file).unwrap();
            let n = value["model"]["vocab"].as_object().unwrap().len();
            let list = value["added_tokens"].as_array_mut().unwrap();
            let from = list.iter().map(|t| t["id"].as_u64().unwrap() + 1).max().unwrap().max(n as u64);
            for (i, content) in ["<|x|>", "Zürich", "New York", "\n\n"].into_iter().enumerate() {
                let flag = |bit: u32| (flags >> bit) & 1 == 1;
                list.push(serde_json::json!({"id": from + i as u64, "content": content, "special": i == 0,
                    "rstrip": flag(0), "lstrip": flag(1), "single_word": flag(2) && i > 0,
                    "normalized": flag(3) && (i > 0 || !file.contains("Prepend"))}));
            }
            let Ok(t) = Tokenizer::new(value.to_string().as_bytes(), 500) else { continue };
            same_as_the_whole(&t, "<|x|>", 30);
        }
    }
}

/// Text after known tokens is not the beginning of a text.
#[test]
fn a_prefix_begins_a_text_once() {
    let metaspace = r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}"#;
    let file = sentence_piece(&[("normalizer", "null"), ("pre_tokenizer", metaspace)]);
    let t = Tokenizer::new(file.as_bytes(), 300).unwrap();
    let encode = |continues| t.encode_unless(&[text("a")], continues, &AtomicBool::new(false)).unwrap().unwrap();
    assert_eq!([encode(false), encode(true)].map(|ids| t.literal(ids[0])), ["▁a", "a"]);

    // A normalizer that prepends, as in files of Llama 2: behind known tokens it does not, and
    // behind a special token it does, as in the whole text.
    let t = Tokenizer::new(sentence_piece(&[]).as_bytes(), 300).unwrap();
    let whole = t.inner.whole.encode("b a</s>a", false).unwrap();
    let rest = [text(" a"), Piece::Control("</s>".to_owned()), text("a")];
    let known = t.encode_pieces(&[text("b")]).unwrap();
    let behind = t.encode_unless(&rest, true, &AtomicBool::new(false)).unwrap().unwrap();
    assert_eq!([known, behind].concat(), whole.get_ids());
}

/// Llama 2's lists `<s>` as a token to look for in normalized text, which begins with a prefix.
#[test]
fn control_pieces_are_their_tokens_whatever_the_normalizer_does() {
    let file = sentence_piece(&[]).replace("\"normalized\":false", "\"normalized\":true");
    let t = Tokenizer::new(file.as_bytes(), 300).unwrap();
    let s = |literal: &str| Piece::Control(literal.to_owned());
    assert_eq!(
        t.encode_pieces(&[s("<s>"), text("ab")]).unwrap(),
        t.inner.whole.encode("<s>ab", false).unwrap().get_ids()
    );
    let ids = t.encode_pieces(&[text("a"), s("</s>"), text("b</s>"), s("<s>")]).unwrap();
    assert_eq!((ids.iter().filter(|id| **id == 2).count(), ids.last()), (1, Some(&1)), "{ids:?}");
}

/// A vocabulary may have two tokens of one spelling, and such as no text becomes.
#[test]
fn tokens_that_no_text_becomes_are_shown() {
    let file = json("").replacen('{', "{\"spellings\":{\"270\":\"Ġhe\",\"271\":\"<unused1>\",\"999\":\"x\"},", 1);
    let t = Tokenizer::new(file.as_bytes(), 300).unwrap();
    assert_eq!(streamed(&t, &[270, 999, 271]), " he<unused1>");
    assert_eq!(t.encode_pieces(&[text(" he")]).unwrap(), [257]);
}

/// Published tokenizers, where they were fetched.
#[test]
fn pieces_encode_as_the_whole_text_of_published_tokenizers() {
    let folder = |name: &str| format!("{}/{name}/tokenizer.json", env!("CARGO_MANIFEST_DIR"));
    for (name, control) in [
        ("tests/golden/tokenizer", ""),
        ("target/models/SmolLM2-135M-Instruct", "<|im_start|>"),
        ("target/models/qwen3", "<|im_start|>"),
        ("target/models/llama3_1", "<|eot_id|>"),
    ] {
        let Ok(file) = std::fs::read(folder(name)) else { continue };
        let t = Tokenizer::new(&file, 200_000).unwrap();
        let literals = t.control_literals();
        let control = if control.is_empty() { literals.last().map_or("", |l| l) } else { control };
        same_as_the_whole(&t, control, 100);
    }
}

fn same_as_the_whole(t: &Tokenizer, control: &str, rounds: usize) {
    let words =
        ["a", "ab", " a", "  ", "\n", "\n\n", "Zürich", " New York", "x", "é", "\u{1F600}", ".", "12", "\t", "he", " "];
    let mut below = numbers(3);
    for _ in 0..rounds {
        let (mut pieces, mut whole) = (Vec::new(), String::new());
        for _ in 0..below(6) {
            let piece = match below(3) {
                0 => Piece::Control(control.to_owned()),
                _ => text(&(0..1 + below(5)).map(|_| words[below(words.len())]).collect::<String>()),
            };
            if let Piece::Control(t) | Piece::Text(t) = &piece {
                whole += t;
            }
            pieces.push(piece);
        }
        let wanted = t.inner.whole.encode(&*whole, false).unwrap();
        assert_eq!(t.encode_pieces(&pieces).unwrap(), wanted.get_ids(), "{pieces:?}");
    }
}

#[test]
fn flat_form_is_unambiguous_and_invertible() {
    let c = |s: &str| Piece::Control(s.to_owned());
    let pieces = vec![
        c("<|s|>"),
        text("user\n<|s|>\u{FDD0}<think>\u{FDD1}"),
        Piece::Reply { turn: 3, pieces: vec![c("<think>"), text("x"), text("")] },
        text("y"),
    ];
    let flat = flatten(&pieces);
    assert_eq!(flat, "\u{FDD0}<|s|>\u{FDD1}user\n<|s|><think>\u{FDD0}<think>\u{FDD1}xy");
    assert_eq!(unflatten(&flat), [c("<|s|>"), text("user\n<|s|><think>"), c("<think>"), text("xy")]);
    assert_eq!(unflatten("a\u{FDD0}b"), [text("ab")], "cut inside a literal: text");
    let t = tokenizer();
    assert_eq!(t.encode_pieces(&pieces).unwrap(), t.encode_pieces(&unflatten(&flat)).unwrap());
}

/// Gemma lists runs of line feeds as added tokens, and a vision token that text-only models have no
/// row for.
#[test]
fn added_words_are_text_and_tokens_beyond_the_vocabulary_are_left_out() {
    let more = [added(260, "\\n", false), added(261, "<image_soft_token>", false), added(262, "Zürich", false)];
    let file = json("").replacen("],\"normalizer\"", &format!(",{}],\"normalizer\"", more.join(",")), 1);
    let tokenizer = Tokenizer::new(file.as_bytes(), 261).unwrap();
    assert_eq!(["<image_soft_token>", "<think>"].map(|t| tokenizer.token_for(t)), [None, Some(259)]);
    assert!(!tokenizer.is_control(260) && tokenizer.is_control(259));
    assert_eq!(tokenizer.encode_pieces(&[text("a\nb")]).unwrap(), [97, 260, 98]);
    assert_eq!(tokenizer.decode(&[97, 260, 98]).unwrap(), "a\nb");
    let typed = tokenizer.encode_pieces(&[text("in Zürich <image_soft_token><think>")]).unwrap();
    assert!(typed.iter().all(|&id| id < 258), "{typed:?}");
    let message = tokenizer.encode_text("Zürich").unwrap_err().to_string();
    assert_eq!(message, "the text has the token \"Zürich\" (id 262), beyond the model's vocabulary of 261");
    let whole = Tokenizer::new(file.as_bytes(), 263).unwrap();
    assert_eq!(whole.encode_pieces(&[text("a Zürich")]).unwrap(), [97, 32, 262], "a word of a fine-tune");
    assert_eq!(streamed(&whole, &[262]), "Zürich", "not the bytes of its letters");
    assert!(!whole.is_hidden(262) && whole.is_hidden(258) && whole.is_hidden(259) && !whole.is_hidden(261));
}

#[test]
fn bad_files_give_one_line() {
    let fails = |json: &str, vocab: usize| {
        let message = format!("{:#}", Tokenizer::new(json.as_bytes(), vocab).err().expect("refused"));
        assert!(!message.contains('\n'), "{message}");
        message
    };
    assert_eq!(fails(&json(""), 257), "tokenizer.json: token \"Ġhe\" has id 257, beyond the model's vocabulary of 257");
    assert_eq!(
        fails(&json("").replace("\"id\":259", "\"id\":262"), 300),
        "tokenizer.json: added token \"<think>\" has id 262, but its place in the list gives 259"
    );
    assert!(fails("{", 10).starts_with("tokenizer.json is not a tokenizer: "));
    assert_eq!(
        fails(&json("").replace("\"BPE\"", "\"XYZ\""), 300),
        "tokenizer.json: model type \"XYZ\" is not supported (BPE is)"
    );
    assert!(fails(&json(",\"x\":1").replace("\"dropout\":null", "\"dropout\":0.5"), 300).contains("dropout"));
}

#[test]
fn literals_longest_first_and_fingerprint() {
    let t = tokenizer();
    assert_eq!(t.control_literals(), ["<think>", "<|s|>"]);
    assert_eq!((t.token_for("<think>"), t.token_for("he")), (Some(259), None));
    assert_eq!((t.literal(258).as_str(), t.literal(9999).as_str()), ("<|s|>", ""));
    assert_eq!(t.fingerprint().len(), 64);
}

/// A tokenizer of Llama 2's kind: spaces as U+2581, characters outside the vocabulary as byte
/// tokens. `parts`: the differences.
fn sentence_piece(parts: &[(&str, &str)]) -> String {
    let mut vocab: Vec<String> = ["<unk>", "<s>", "</s>"].map(|t| format!("{t:?}")).to_vec();
    vocab.extend((0..=255).map(|b| format!("\"<0x{b:02X}>\"")));
    vocab.extend(["▁", "a", "b", "c", "▁a", "ab", ".", "\\n", "▁▁", "b▁", "\u{FFFD}"].map(|t| format!("\"{t}\"")));
    let vocab: Vec<String> = vocab.iter().enumerate().map(|(id, t)| format!("{t}: {id}")).collect();
    let raw = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{},{},{}],
        "normalizer":{{"type":"Sequence","normalizers":[{{"type":"Prepend","prepend":"▁"}},{{"type":"Replace","pattern":{{"String":" "}},"content":"▁"}}]}},
        "pre_tokenizer":null,"post_processor":null,
        "decoder":{{"type":"Sequence","decoders":[{{"type":"Replace","pattern":{{"String":"▁"}},"content":" "}},{{"type":"ByteFallback"}},{{"type":"Fuse"}},{{"type":"Strip","content":" ","start":1,"stop":0}}]}},
        "model":{{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,"end_of_word_suffix":null,
        "fuse_unk":true,"byte_fallback":true,"vocab":{{{}}},"merges":[["▁","a"],["a","b"],["▁","▁"]]}}}}"#,
        added(0, "<unk>", true),
        added(1, "<s>", true),
        added(2, "</s>", true),
        vocab.join(",")
    );
    let mut file: serde_json::Value = serde_json::from_str(&raw).unwrap();
    for (key, part) in parts {
        file[*key] = serde_json::from_str(part).unwrap();
    }
    file.to_string()
}

#[test]
fn sentence_piece_kind_streams_what_it_decodes() {
    let t = Tokenizer::new(sentence_piece(&[]).as_bytes(), 300).unwrap();
    for content in ["a", " a  b", "ab 東京 \u{1F600}c. a\nb", "</s>", "é"] {
        let ids = t.encode_pieces(&[text(content)]).unwrap();
        assert_eq!((&*streamed(&t, &ids), &*t.decode(&ids).unwrap()), (content, content));
        assert!(ids.iter().all(|&id| !t.is_control(id)), "{content:?}: {ids:?}");
    }
}

/// A control token that must be a whole word is text beside a letter, as for the crate.
#[test]
fn marks_of_control_tokens_never_become_tokens() {
    let whole_words = |raw: String| raw.replace("\"single_word\":false", "\"single_word\":true");
    let sides = ["a", " ", "", "é", "."];
    for (raw, literal) in
        [(json(""), "<|s|>"), (sentence_piece(&[]), "<s>"), (sentence_piece(&[("normalizer", "null")]), "<s>")]
    {
        let t = Tokenizer::new(whole_words(raw).as_bytes(), 300).unwrap();
        for (before, after) in sides.iter().flat_map(|before| sides.map(|after| (*before, after))) {
            let control = || Piece::Control(literal.to_owned());
            let pieces = [text(before), control(), text(after), control()];
            let wanted = t.inner.whole.encode(format!("{before}{literal}{after}{literal}"), false).unwrap();
            assert_eq!(t.encode_pieces(&pieces).unwrap(), wanted.get_ids(), "{pieces:?}");
        }
    }
}

#[test]
fn characters_that_the_vocabulary_lacks_are_the_unknown_token() {
    let raw = sentence_piece(&[]).replace("\"byte_fallback\":true", "\"byte_fallback\":false");
    let t = Tokenizer::new(raw.as_bytes(), 300).unwrap();
    for content in ["a \u{1F600}b", "é", "ab東京 \u{1F600}"] {
        let wanted = t.inner.whole.encode(content, false).unwrap();
        assert!(wanted.get_ids().contains(&0));
        assert_eq!(t.encode_pieces(&[text(content)]).unwrap(), wanted.get_ids(), "{content:?}");
    }
    // A vocabulary that makes a token of the spelling: it stays text.
    let raw = sentence_piece(&[("normalizer", "null")]);
    let raw = raw.replace("\"byte_fallback\":true", "\"byte_fallback\":true,\"ignore_merges\":true");
    let t = Tokenizer::new(raw.as_bytes(), 300).unwrap();
    let ids = t.encode_pieces(&[text("<unk>")]).unwrap();
    assert_eq!((ids.contains(&0), &*t.decode(&ids).unwrap()), (false, "<unk>"));
}

/// Every fault of a file is reported in one line.
#[test]
fn damaged_files_never_panic() {
    let whole = json("").into_bytes();
    let mut state = 3u64;
    for _ in 0..400 {
        let mut bytes = whole.clone();
        for _ in 0..2 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = b"0123456789{}[],:\"xnul"[(state >> 20) as usize % 21];
        }
        if let Err(e) = Tokenizer::new(&bytes, 260) {
            assert!(!format!("{e:#}").contains('\n'), "{e:#}");
        }
    }
}

/// The tokenizer of [`json`] with other parts, which are given as JSON.
fn with_parts(parts: &[(&str, &str)]) -> String {
    let mut file: serde_json::Value = serde_json::from_str(&json("")).unwrap();
    for (key, part) in parts {
        file[*key] = serde_json::from_str(part).unwrap();
    }
    file.to_string()
}

const LLAMA3: &str = r#"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"#;

fn split_by(regex: &str) -> String {
    let regex = serde_json::to_string(regex).unwrap();
    let split = format!(r#"{{"type":"Split","pattern":{{"Regex":{regex}}},"behavior":"Isolated","invert":false}}"#);
    let byte_level = r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}"#;
    with_parts(&[
        ("normalizer", r#"{"type":"NFC"}"#),
        ("pre_tokenizer", &format!(r#"{{"type":"Sequence","pretokenizers":[{split},{byte_level}]}}"#)),
    ])
}

#[test]
fn only_known_and_bounded_parts_are_read() {
    let fails = |raw: &str| format!("{:#}", Tokenizer::new(raw.as_bytes(), 300).err().expect("refused"));
    let sequence =
        |part: &str, n: usize| format!(r#"{{"type":"Sequence","normalizers":[{}]}}"#, vec![part; n].join(","));
    let cases = [
        (("normalizer", sequence(r#"{"type":"NFC"}"#, 17)), "a list of more than 16 entries"),
        (("normalizer", sequence(&sequence(r#"{"type":"NFC"}"#, 1), 1)), "normalizer \"Sequence\" is not supported"),
        (("normalizer", r#"{"pattern":{"String":"a"},"content":"b"}"#.into()), "a normalizer names no type"),
        (
            ("normalizer", r#"{"type":"Replace","pattern":{"String":""},"content":"b"}"#.into()),
            "replaces the empty text",
        ),
        (("normalizer", r#"{"type":"Replace","pattern":{"Regex":"a*"},"content":"b"}"#.into()), "replaces a regex"),
        (("pre_tokenizer", r#"{"type":"FixedLength","length":0}"#.into()), "pre-tokenizer \"FixedLength\""),
        (
            ("decoder", r#"{"type":"CTC","pad_token":"","word_delimiter_token":"","cleanup":true}"#.into()),
            "decoder \"CTC\"",
        ),
        (
            ("added_tokens", format!("[{}]", vec![r#"{"id":1,"content":"a"}"#; 16_385].join(","))),
            "more than 16384 entries",
        ),
    ];
    for ((key, part), wanted) in cases {
        let line = fails(&with_parts(&[(key, &part)]));
        assert!(line.contains(wanted) && !line.contains('\n'), "{wanted}: {line}");
    }
    for (regex, wanted) in
        [(r"(a+)\1", "a back reference"), (r"(?<=a)b", "look-behind"), (r"(a)?(?(1)b|c)", "a conditional")]
    {
        assert!(fails(&split_by(regex)).contains(wanted));
    }
    let own = Tokenizer::new(split_by(r"\p{L}+|[^\p{L}]").as_bytes(), 300).unwrap();
    let late = own.probe(Duration::ZERO).unwrap_err().to_string();
    assert_eq!(late, "tokenizer.json: its patterns take more than 0 s for a text of 115200 bytes");
    assert!(fails(&split_by(&"a".repeat(5000))).contains("a pattern has 5000 bytes, expected at most 4096"));
    let many = (0..303).map(|i| format!("\"t{i}\":{i}")).collect::<Vec<_>>().join(",");
    let model = format!(r#"{{"type":"BPE","vocab":{{{many}}},"merges":[]}}"#);
    assert!(fails(&with_parts(&[("model", &model)])).contains("303 tokens and 0 merges are too many"));
}

/// Slices of a long text give the tokens of the whole, and a stop ends the work.
#[test]
fn long_texts_are_encoded_in_slices() {
    let digits = r#"{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
        {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}]}"#;
    let words =
        ["he", "hehe", "it's", "I'll", "x", "é", "e\u{301}", "世", "12", "!", "\n", "\r\n", "\t", " ", "Z\n", "  "];
    let mut state = 5u64;
    let mut long = String::new();
    while long.len() < 5 * SLICE_BYTES / 2 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        long.push_str(words[(state >> 33) as usize % words.len()]);
        long.push_str([" ", "", " "][(state >> 50) as usize % 3]);
    }
    assert!(slice_end(&long) < long.len() / 2);
    for raw in [json(""), split_by(LLAMA3), with_parts(&[("pre_tokenizer", digits)])] {
        let t = Tokenizer::new(raw.as_bytes(), 300).unwrap();
        assert!(t.inner.splits_at_spaces);
        let whole = guarded("", || t.inner.content.tokenizer.encode_fast(&*long, false)).unwrap();
        assert_eq!(t.encode_pieces(&[text(&long)]).unwrap(), whole.get_ids());
        assert_eq!(t.encode_unless(&[text(&long)], false, &AtomicBool::new(true)).unwrap(), None);
        // Wherever a space is between two letters, not only at the slices' ends.
        let part = &long[..2000.min(long.len())];
        let part = &part[..(0..=2000).rev().find(|&at| long.is_char_boundary(at)).unwrap().min(part.len())];
        let whole = t.encode_pieces(&[text(part)]).unwrap();
        for (at, w) in part.as_bytes().windows(3).enumerate() {
            if w[0].is_ascii_alphabetic() && w[1] == b' ' && w[2].is_ascii_alphabetic() {
                let halves = [&part[..at + 1], &part[at + 1..]].map(|half| t.encode_pieces(&[text(half)]).unwrap());
                assert_eq!(halves.concat(), whole, "cut at {at}");
            }
        }
    }
    let prefixed = json("").replacen("\"add_prefix_space\":false", "\"add_prefix_space\":true", 1);
    assert!(!Tokenizer::new(prefixed.as_bytes(), 300).unwrap().inner.splits_at_spaces);
    assert_eq!(tokenizer().longest_token_bytes(), "<think>".len());
}
