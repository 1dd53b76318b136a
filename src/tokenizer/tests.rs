//! The tokenizer against the crate's own whole decode, hostile content and bad files.

use super::*;

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

/// Gemma's lists runs of line feeds as added tokens, and a token of its vision that text-only models have no row for.
#[test]
fn added_white_space_is_text_and_tokens_of_vision_are_left_out() {
    let more = [added(260, "\\n", false), added(261, "<image_soft_token>", false)].join(",");
    let file = json("").replacen("],\"normalizer\"", &format!(",{more}],\"normalizer\""), 1);
    let tokenizer = Tokenizer::new(file.as_bytes(), 261).unwrap();
    assert_eq!(["<image_soft_token>", "<think>"].map(|t| tokenizer.token_for(t)), [None, Some(259)]);
    assert!(!tokenizer.is_control(260) && tokenizer.is_control(259));
    assert_eq!(tokenizer.encode_pieces(&[text("a\nb")]).unwrap(), [97, 10, 98]);
    assert_eq!(tokenizer.decode(&[97, 260, 98]).unwrap(), "a\nb");
    let message = format!("{:#}", Tokenizer::new(file.as_bytes(), 260).err().expect("refused"));
    assert_eq!(message, "tokenizer.json: token \"\\n\" has id 260, beyond the model's vocabulary of 260");
}

#[test]
fn bad_files_give_one_line() {
    let fails = |json: &str, vocab: usize| {
        let message = format!("{:#}", Tokenizer::new(json.as_bytes(), vocab).err().expect("refused"));
        assert!(!message.contains('\n'), "{message}");
        message
    };
    assert_eq!(
        fails(&json(""), 259),
        "tokenizer.json: token \"<think>\" has id 259, beyond the model's vocabulary of 259"
    );
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
    assert_eq!(t.added_literals(), ["<think>", "<|s|>"]);
    assert_eq!((t.token_for("<think>"), t.token_for("he")), (Some(259), None));
    assert_eq!((t.literal(258).as_str(), t.literal(9999).as_str()), ("<|s|>", ""));
    assert_eq!(t.fingerprint().len(), 64);
}

/// Llama 2's kind: spaces as U+2581, characters outside the vocabulary as byte tokens.
#[test]
fn sentence_piece_kind_streams_what_it_decodes() {
    let mut vocab: Vec<String> = ["<unk>", "<s>", "</s>"].map(|t| format!("{t:?}")).to_vec();
    vocab.extend((0..=255).map(|b| format!("\"<0x{b:02X}>\"")));
    vocab.extend(["▁", "a", "b", "c", "▁a", "ab", ".", "\\n"].map(|t| format!("\"{t}\"")));
    let vocab: Vec<String> = vocab.iter().enumerate().map(|(id, t)| format!("{t}: {id}")).collect();
    let raw = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{},{},{}],
        "normalizer":{{"type":"Sequence","normalizers":[{{"type":"Prepend","prepend":"▁"}},{{"type":"Replace","pattern":{{"String":" "}},"content":"▁"}}]}},
        "pre_tokenizer":null,"post_processor":null,
        "decoder":{{"type":"Sequence","decoders":[{{"type":"Replace","pattern":{{"String":"▁"}},"content":" "}},{{"type":"ByteFallback"}},{{"type":"Fuse"}},{{"type":"Strip","content":" ","start":1,"stop":0}}]}},
        "model":{{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,"end_of_word_suffix":null,
        "fuse_unk":true,"byte_fallback":true,"vocab":{{{}}},"merges":[["▁","a"],["a","b"]]}}}}"#,
        added(0, "<unk>", true),
        added(1, "<s>", true),
        added(2, "</s>", true),
        vocab.join(",")
    );
    let t = Tokenizer::new(raw.as_bytes(), 300).unwrap();
    for content in ["a", " a  b", "ab 東京 \u{1F600}c. a\nb", "</s>", "é"] {
        let ids = t.encode_pieces(&[text(content)]).unwrap();
        assert_eq!((&*streamed(&t, &ids), &*t.decode(&ids).unwrap()), (content, content));
        assert!(ids.iter().all(|&id| !t.is_control(id)), "{content:?}: {ids:?}");
    }
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
    let many = (0..301).map(|i| format!("\"t{i}\":{i}")).collect::<Vec<_>>().join(",");
    let model = format!(r#"{{"type":"BPE","vocab":{{{many}}},"merges":[]}}"#);
    assert!(fails(&with_parts(&[("model", &model)])).contains("301 tokens and 0 merges are too many"));
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
        let whole = guarded("", || t.inner.plain.encode_fast(&*long, false)).unwrap();
        assert_eq!(t.encode_pieces(&[text(&long)]).unwrap(), whole.get_ids());
        assert_eq!(t.encode_unless(&[text(&long)], &AtomicBool::new(true)).unwrap(), None);
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
