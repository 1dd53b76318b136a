//! Quantized safetensors: every format decodes to its formula, and integer codes survive in int4.

use crate::folder::{Folder, assemble, merged};
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use dmschat::quant::Weights;
use dmschat::quantize::calibration::Calibration;
use dmschat::quantize::convert::{Importance, convert};
use dmschat::quantize::weight_cache::convert_in_memory;
use serde_json::{Value, json};

const ROWS: usize = 64;
const COLS: usize = 256;
const GROUP: usize = 128;
const GROUPS: usize = COLS / GROUP;
const NAME: &str = "model.layers.0.self_attn.q_proj";

fn config() -> Value {
    json!({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": COLS, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 64, "vocab_size": 16, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "rope_theta": 1e4, "tie_word_embeddings": true})
}

/// A tensor of a file: its name after that of the matrix, type, shape, bytes.
type Part = (&'static str, &'static str, Vec<usize>, Vec<u8>);

/// A folder whose q is stored as `parts`, and the rest as bf16 zeros.
fn folder(quantization: Value, parts: &[Part]) -> Folder {
    let folder = Folder { dir: tempfile::tempdir().unwrap() };
    folder.json("config.json", &merged(config(), json!({ "quantization_config": quantization })));
    let (mut header, mut data) = (json!({}), Vec::new());
    let mut put = |name: &str, dtype: &str, shape: &[usize], bytes: &[u8]| {
        let start = data.len();
        data.extend(bytes);
        header[name] = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
    };
    for (name, shape) in [
        ("embed_tokens", vec![16, COLS]),
        ("norm", vec![COLS]),
        ("layers.0.input_layernorm", vec![COLS]),
        ("layers.0.post_attention_layernorm", vec![COLS]),
        ("layers.0.self_attn.k_proj", vec![32, COLS]),
        ("layers.0.self_attn.v_proj", vec![32, COLS]),
        ("layers.0.self_attn.o_proj", vec![COLS, ROWS]),
        ("layers.0.mlp.gate_proj", vec![64, COLS]),
        ("layers.0.mlp.up_proj", vec![64, COLS]),
        ("layers.0.mlp.down_proj", vec![COLS, 64]),
    ] {
        put(&format!("model.{name}.weight"), "BF16", &shape, &vec![0; 2 * shape.iter().product::<usize>()]);
    }
    for (name, dtype, shape, bytes) in parts {
        put(&format!("{NAME}.{name}"), dtype, shape, bytes);
    }
    folder.write("model.safetensors", &assemble(&header, &data));
    folder
}

fn open(folder: &Folder) -> anyhow::Result<Checkpoint> {
    Checkpoint::open(&ModelRef::Folder(folder.path().to_owned()), &AdapterChoice::None)
}

/// Codes, zero points and scales of a matrix.
struct Matrix {
    codes: Vec<Vec<u32>>,
    zeros: Vec<Vec<u32>>,
    scales: Vec<Vec<f32>>,
    /// The group of each column.
    group: Vec<usize>,
}

impl Matrix {
    /// Zero points from 1 on; scales that q4's 11 bits hold.
    fn new() -> Self {
        let number = |seed: usize, r: usize, c: usize| (r * 31 + c * 17 + r * c * seed) % 97;
        let matrix = |cols: usize, value: &dyn Fn(usize, usize) -> u32| {
            (0..ROWS).map(|r| (0..cols).map(|c| value(r, c)).collect()).collect::<Vec<Vec<u32>>>()
        };
        let scale = |n: &u32| (64 + n % 64) as f32 / 4096.0;
        let raw = matrix(GROUPS, &|r, g| number(5, r, g) as u32);
        Self {
            codes: matrix(COLS, &|r, c| number(3, r, c) as u32 % 16),
            zeros: matrix(GROUPS, &|r, g| 1 + number(7, r, g + 3) as u32 % 15),
            scales: raw.iter().map(|row| row.iter().map(scale).collect()).collect(),
            group: (0..COLS).map(|c| c / GROUP).collect(),
        }
    }

    fn values(&self) -> Vec<f32> {
        let value = |r: usize, c: usize| {
            let g = self.group[c];
            self.scales[r][g] * (self.codes[r][c] as f32 - self.zeros[r][g] as f32)
        };
        (0..ROWS).flat_map(|r| (0..COLS).map(move |c| (r, c))).map(|(r, c)| value(r, c)).collect()
    }

    /// Scales `[groups, rows]` in F16, or `[rows, groups]` in BF16.
    fn scales(&self, by_group: bool) -> (Vec<usize>, Vec<u8>) {
        if by_group {
            let all = (0..GROUPS).flat_map(|g| self.scales.iter().map(move |row| half::f16::from_f32(row[g])));
            return (vec![GROUPS, ROWS], all.flat_map(half::f16::to_le_bytes).collect());
        }
        let all = self.scales.iter().flatten().map(|s| half::bf16::from_f32(*s));
        (vec![ROWS, GROUPS], all.flat_map(half::bf16::to_le_bytes).collect())
    }
}

/// Words of `[a, b]`, each of the eight codes that `code(i, j, k)` gives.
fn words(a: usize, b: usize, code: impl Fn(usize, usize, usize) -> u32) -> (Vec<usize>, Vec<u8>) {
    let word = |i: usize, j: usize| (0..8).fold(0, |word, k| word | code(i, j, k) << (4 * k));
    let all = (0..a).flat_map(|i| (0..b).map(move |j| (i, j)));
    (vec![a, b], all.flat_map(|(i, j)| word(i, j).to_le_bytes()).collect())
}

fn part(name: &'static str, dtype: &'static str, (shape, bytes): (Vec<usize>, Vec<u8>)) -> Part {
    (name, dtype, shape, bytes)
}

fn gptq(m: &Matrix, less: u32) -> Vec<Part> {
    let index = m.group.iter().flat_map(|g| (*g as i32).to_le_bytes()).collect();
    vec![
        part("qweight", "I32", words(COLS / 8, ROWS, |i, r, k| m.codes[r][8 * i + k])),
        part("qzeros", "I32", words(GROUPS, ROWS / 8, |g, i, k| m.zeros[8 * i + k][g] - less)),
        part("scales", "F16", m.scales(true)),
        part("g_idx", "I32", (vec![COLS], index)),
    ]
}

fn awq(m: &Matrix) -> Vec<Part> {
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    vec![
        part("qweight", "I32", words(COLS, ROWS / 8, |c, i, k| m.codes[8 * i + ORDER[k]][c])),
        part("qzeros", "I32", words(GROUPS, ROWS / 8, |g, i, k| m.zeros[8 * i + ORDER[k]][g])),
        part("scales", "F16", m.scales(true)),
    ]
}

fn compressed(m: &Matrix, zeros: bool) -> Vec<Part> {
    let mut parts = vec![
        part("weight_packed", "I32", words(ROWS, COLS / 8, |r, i, k| m.codes[r][8 * i + k])),
        part("weight_scale", "BF16", m.scales(false)),
        part("weight_shape", "I64", (vec![2], [ROWS as i64, COLS as i64].map(i64::to_le_bytes).concat())),
    ];
    if zeros {
        let packed = words(ROWS / 8, GROUPS, |i, g, k| m.zeros[8 * i + k][g]);
        parts.push(part("weight_zero_point", "I32", packed));
    }
    parts
}

fn compressed_config() -> Value {
    json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}}})
}

#[test]
fn integer_codes_decode_to_their_formula_and_stay_exact_in_int4_fast() {
    let m = Matrix::new();
    let symmetric = Matrix { zeros: vec![vec![8; GROUPS]; ROWS], ..Matrix::new() };
    let gptq_config =
        |version: &str| json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": version});
    let awq_config = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"});
    for (what, config, parts, values) in [
        ("GPTQ", gptq_config("gptq"), gptq(&m, 1), m.values()),
        ("GPTQ", gptq_config("gptq_v2"), gptq(&m, 0), m.values()),
        ("AWQ", awq_config, awq(&m), m.values()),
        ("pack-quantized", compressed_config(), compressed(&m, true), m.values()),
        ("pack-quantized", compressed_config(), compressed(&symmetric, false), symmetric.values()),
    ] {
        let c = open(&folder(config, &parts)).unwrap_or_else(|e| panic!("{what}: {e:#}"));
        let name = format!("{NAME}.weight");
        assert_eq!((c.tensors[&name].format.name(), &c.tensors[&name].shape[..]), (what, &[ROWS, COLS][..]));
        assert!(c.tensors[&name].to_f32() == values, "{what}");
        let c = convert(c, Weights::Int4Fast, &Importance::new(), 1, |_, _| true).unwrap();
        assert_eq!(c.tensors[&name].format.name(), "q4");
        assert!(c.tensors[&name].to_f32() == values, "{what} as int4-fast");
    }
}

/// The last group may be shorter: its size is the configuration's, and not an equal share of the
/// columns.
#[test]
fn groups_have_the_size_that_the_configuration_says() {
    let m = Matrix { group: (0..COLS).map(|c| c / 192).collect(), ..Matrix::new() };
    let without_index = || gptq(&m, 1).into_iter().filter(|p| p.0 != "g_idx").collect();
    for (method, parts) in [("gptq", gptq(&m, 1)), ("gptq", without_index()), ("awq", awq(&m))] {
        let config = |size: i64| json!({"quant_method": method, "bits": 4, "group_size": size});
        let c = open(&folder(config(192), &parts)).unwrap_or_else(|e| panic!("{method}: {e:#}"));
        assert!(c.tensors[&format!("{NAME}.weight")].to_f32() == m.values(), "{method}");
        for (size, columns) in [(96, 96), (-1, COLS)] {
            let said = format!("{:#}", open(&folder(config(size), &parts)).err().unwrap());
            let wanted = format!("qweight: there are scales of 2 groups, and 256 columns in groups of {columns}");
            assert!(said.ends_with(&wanted), "{said}");
        }
    }
}

#[test]
fn an_act_order_is_followed_and_said() {
    let mut m = Matrix::new();
    m.group = (0..COLS).map(|c| (c * 7 + 1) % COLS / GROUP).collect();
    let config = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true});
    let open = || open(&folder(config.clone(), &gptq(&m, 1))).unwrap();
    let name = format!("{NAME}.weight");
    assert!(open().tensors[&name].to_f32() == m.values());
    assert_eq!(open().notices().count(), 0);
    let int4 = convert(open(), Weights::Int4Fast, &Importance::new(), 1, |_, _| true).unwrap();
    let notices: Vec<String> = int4.notices().collect();
    assert_eq!(notices, ["its GPTQ codes are in act-order, so they were quantized again; int8 is closer to them"]);
    m.group[5] = GROUPS;
    let said = format!("{:#}", self::open(&folder(config.clone(), &gptq(&m, 1))).err().unwrap());
    assert!(said.ends_with("q_proj.qweight: the group index names a group beyond the 2 there are"), "{said}");
}

/// 1 sign, 4 bits of exponent with bias 7, 3 of mantissa.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size =
        if exponent == 0 { mantissa / 8.0 * 2f32.powi(-6) } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
    if code >= 128 { -size } else { size }
}

#[test]
fn fp8_decodes_to_its_formula() {
    // Every code but the two that are NaN.
    let codes: Vec<u8> =
        (0..ROWS * COLS).map(|i| (i + i / COLS) as u8).map(|c| if c & 0x7f == 0x7f { 0 } else { c }).collect();
    let weight = || part("weight", "F8_E4M3", (vec![ROWS, COLS], codes.clone()));
    let scales = |n: usize| (0..n).map(|i| 0.01 + i as f32 / 64.0).collect::<Vec<f32>>();
    let f32s = |all: &[f32]| all.iter().flat_map(|s| s.to_le_bytes()).collect::<Vec<u8>>();
    let compressed = json!({"quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}});
    let blocks =
        json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [24, 128]});
    // Mistral's own files: one scale per matrix, and one of activations, which stay as they are.
    let mistral = json!({"quant_method": "fp8", "activation_scheme": "static", "dequantize": false,
        "weight_block_size": null, "modules_to_not_convert": ["model.vision_tower", "lm_head"]});
    let cases = [
        (blocks.clone(), "weight_scale_inv", vec![3, 2], [24, 128]),
        (mistral, "weight_scale_inv", vec![], [ROWS, COLS]),
        // transformers' default for the size of a block; AutoFP8 states no size and has one scale.
        (json!({"quant_method": "fp8"}), "weight_scale_inv", vec![1, 2], [128, 128]),
        (json!({"quant_method": "fp8"}), "weight_scale", vec![1], [ROWS, COLS]),
        (compressed.clone(), "weight_scale", vec![ROWS, 1], [1, COLS]),
        (compressed, "weight_scale", vec![1], [ROWS, COLS]),
    ];
    for (config, name, shape, [rows, cols]) in cases {
        let all = scales(shape.iter().product());
        let wide = COLS.div_ceil(cols);
        let wanted: Vec<f32> =
            (0..ROWS * COLS).map(|i| e4m3(codes[i]) * all[i / COLS / rows * wide + i % COLS / cols]).collect();
        let activations = part("activation_scale", "F32", (vec![], f32s(&[0.5])));
        let c = open(&folder(config, &[weight(), part(name, "F32", (shape, f32s(&all))), activations])).unwrap();
        let tensor = &c.tensors[&format!("{NAME}.weight")];
        assert_eq!(tensor.format.name(), "FP8");
        assert!(tensor.to_f32() == wanted, "{name}");
    }
    let said = |parts: &[Part]| format!("{:#}", open(&folder(blocks.clone(), parts)).err().unwrap());
    assert!(said(&[weight()]).ends_with("tensor model.layers.0.self_attn.q_proj.weight_scale is missing"));
    let wrong = said(&[weight(), part("weight_scale_inv", "F32", (vec![2, 2], f32s(&scales(4))))]);
    assert!(
        wrong.ends_with("scales of shape [2, 2] do not fit 64 rows, 256 columns and blocks Some([24, 128])"),
        "{wrong}"
    );
}

/// Sign, 2 bits of exponent with bias 1, 1 of mantissa.
fn e2m1(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 1 & 3), f32::from(code & 1));
    let size = if exponent == 0 { mantissa / 2.0 } else { (1.0 + mantissa / 2.0) * 2f32.powi(exponent - 1) };
    if code >= 8 { -size } else { size }
}

/// Codes, scales and scale of the matrix under the names of modelopt, or of compressed-tensors.
fn nvfp4(modelopt: bool, whole: f32) -> (Value, Vec<Part>, Vec<f32>) {
    // Every code, and every scale but NaN.
    let code = |i: usize| ((i * 7 + i / COLS) % 16) as u8;
    let scale = |i: usize| (i % 127) as u8;
    let codes = (0..ROWS * COLS / 2).map(|i| code(2 * i) | code(2 * i + 1) << 4).collect();
    let scales: Vec<u8> = (0..ROWS * COLS / 16).map(scale).collect();
    let factor = |i: usize| if modelopt { e4m3(scales[i / 16]) * whole } else { e4m3(scales[i / 16]) / whole };
    let values = (0..ROWS * COLS).map(|i| e2m1(code(i)) * factor(i)).collect();
    let (config, names, shape) = if modelopt {
        let config = json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]});
        (config, ["weight", "weight_scale_2"], vec![])
    } else {
        let weights = json!({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16});
        let config = json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}});
        (config, ["weight_packed", "weight_global_scale"], vec![1])
    };
    let parts = vec![
        part(names[0], "U8", (vec![ROWS, COLS / 2], codes)),
        part("weight_scale", "F8_E4M3", (vec![ROWS, COLS / 16], scales.clone())),
        part(names[1], "F32", (shape, whole.to_le_bytes().to_vec())),
    ];
    (config, parts, values)
}

#[test]
fn nvfp4_decodes_to_its_formula() {
    for modelopt in [true, false] {
        let (config, parts, values) = nvfp4(modelopt, if modelopt { 0.0013 } else { 1700.0 });
        let c = open(&folder(config.clone(), &parts)).unwrap();
        let tensor = &c.tensors[&format!("{NAME}.weight")];
        assert_eq!((tensor.format.name(), &tensor.shape[..]), ("NVFP4", &[ROWS, COLS][..]));
        assert!(tensor.to_f32() == values);
        let said = |change: &dyn Fn(&mut Vec<Part>)| {
            let mut parts = parts.clone();
            change(&mut parts);
            let text = format!("{:#}", open(&folder(config.clone(), &parts)).err().unwrap());
            assert!(!text.contains('\n'));
            text.rsplit("q_proj.").next().unwrap().to_owned()
        };
        let missing = |at: usize| said(&|parts| drop(parts.remove(at)));
        assert_eq!([1, 2].map(missing), [parts[1].0, parts[2].0].map(|name| format!("{name} is missing")));
        let codes = parts[0].0;
        assert_eq!(
            said(
                &|parts| parts[1] = part("weight_scale", "F8_E4M3", (vec![ROWS, COLS / 32], vec![0; ROWS * COLS / 32]))
            ),
            format!("{codes}: scales have shape [64, 8], expected [64, 16]")
        );
        assert_eq!(
            said(&|parts| parts[0] = part(codes, "U8", (vec![ROWS, COLS / 4], vec![0; ROWS * COLS / 4]))),
            format!("{codes}: its matrix has shape [64, 128], expected [64, 256]")
        );
        assert_eq!(said(&|parts| parts[1].1 = "U8"), format!("{codes}: scales are U8, expected F8_E4M3"));
    }
}

/// modelopt's FP8 has a scale for the whole matrix, without a dimension.
#[test]
fn fp8_of_modelopt_decodes_to_its_formula() {
    let codes: Vec<u8> = (0..ROWS * COLS).map(|i| (i % 127) as u8).collect();
    let config = json!({"quant_method": "modelopt", "quant_algo": "FP8"});
    let scale = part("weight_scale", "F32", (vec![], 0.03f32.to_le_bytes().to_vec()));
    let weight = part("weight", "F8_E4M3", (vec![ROWS, COLS], codes.clone()));
    let c = open(&folder(config, &[weight, scale])).unwrap();
    let wanted: Vec<f32> = codes.iter().map(|&code| e4m3(code) * 0.03).collect();
    assert!(c.tensors[&format!("{NAME}.weight")].to_f32() == wanted);
}

#[test]
fn scales_and_codes_that_are_no_numbers_are_refused_at_the_row_they_are_in() {
    let said = |config: Value, parts: &[Part]| {
        let source = open(&folder(config, parts)).unwrap();
        let quiet = &mut |_| panic!("nothing is said before it");
        let said = convert_in_memory(source, Weights::Int8, &Calibration::Equal, quiet).err().unwrap().to_string();
        let (_, row) = said.split_once("q_proj.weight has a scale in row ").unwrap();
        row.split(' ').next().unwrap().parse::<usize>().unwrap()
    };
    let gptq_config = json!({"quant_method": "gptq", "bits": 4, "group_size": 128});
    let mut parts = gptq(&Matrix::new(), 1);
    // The scale of the second group of row 5.
    parts[2].3[2 * (ROWS + 5)..][..2].copy_from_slice(&0x7c00u16.to_le_bytes());
    assert_eq!(said(gptq_config, &parts), 5);
    let (config, mut parts, _) = nvfp4(true, 1.0);
    // The fourth scale of row 9.
    parts[1].3[9 * COLS / 16 + 3] = 0x7f;
    assert_eq!(said(config, &parts), 9);
    let (config, parts, _) = nvfp4(false, 0.0);
    assert_eq!(said(config, &parts), 0);
    let blocks = json!({"quant_method": "fp8", "weight_block_size": [24, 128]});
    let fp8 = |codes: Vec<u8>, last: f32| {
        let scales = [1.0, 1.0, 1.0, 1.0, 1.0, last];
        let scales = scales.iter().flat_map(|s: &f32| s.to_le_bytes()).collect();
        let codes = part("weight", "F8_E4M3", (vec![ROWS, COLS], codes));
        said(blocks.clone(), &[codes, part("weight_scale_inv", "F32", (vec![3, 2], scales))])
    };
    assert_eq!(fp8(vec![1; ROWS * COLS], f32::NAN), 48);
    let mut codes = vec![1; ROWS * COLS];
    codes[ROWS * COLS - 1] = 0xff;
    assert_eq!(fp8(codes, 1.0), ROWS - 1);
}

#[test]
fn parts_that_do_not_fit_are_refused_in_one_line() {
    let m = Matrix::new();
    let config = json!({"quant_method": "gptq", "bits": 4, "group_size": 128});
    let said = |change: &dyn Fn(&mut Vec<Part>)| {
        let mut parts = gptq(&m, 1);
        change(&mut parts);
        let text = format!("{:#}", open(&folder(config.clone(), &parts)).err().unwrap());
        assert!(!text.contains('\n'));
        text.rsplit("q_proj").next().unwrap().to_owned()
    };
    assert_eq!(said(&|p| drop(p.remove(1))), ".qzeros is missing");
    assert_eq!(said(&|p| p[1].2 = vec![ROWS / 8, GROUPS]), ".qweight: zero points have shape [8, 2], expected [2, 8]");
    assert_eq!(said(&|p| p[2].2 = vec![ROWS, GROUPS]), ".qweight: scales have shape [64, 2] for 64 rows");
    let narrow = |p: &mut Vec<Part>| {
        p[0] = part("qweight", "I32", (vec![COLS / 16, ROWS], vec![0; COLS / 16 * ROWS * 4]));
    };
    assert_eq!(said(&narrow), ".qweight: its matrix has shape [64, 128], expected [64, 256]");
    assert_eq!(said(&|p| p[0].1 = "F32"), ".qweight: codes are not I32 or scales not F16, BF16 or F32");
    assert_eq!(said(&|p| p[0].2 = vec![ROWS, COLS / 8]), ".qweight: scales have shape [2, 64] for 32 rows");
    let config = |change: Value| {
        let base = json!({"quant_method": "gptq", "bits": 4, "group_size": 128});
        let text = format!("{:#}", open(&folder(merged(base, change), &[])).err().unwrap());
        text.rsplit("quantization_config").next().unwrap().to_owned()
    };
    // Options of GPTQModel: matrices that stay unquantized need nothing, matrices of another format
    // are refused.
    let dynamic = |rules: Value| config(json!({ "dynamic": rules }));
    assert!(dynamic(json!({"-:.*1.*": {}, ".*2.*": {"bits": 4, "desc_act": true}})).ends_with("is missing"));
    for key in ["bits", "group_size"] {
        let said = dynamic(json!({"+:.*1.*": { key: 8 }}));
        let wanted =
            format!(": dynamic: {key} of \"+:.*1.*\" differs from that of other matrices, which is not supported");
        assert_eq!(said, wanted);
    }
    assert_eq!(config(json!({"pack_dtype": "int64"})), ": pack_dtype \"int64\" is not supported (int32 is)");
    assert_eq!(config(json!({"bits": 3})), ": bits 3 is not supported (4, 8 supported)");
    assert_eq!(
        config(json!({"checkpoint_format": "marlin"})),
        ": checkpoint_format \"marlin\" is not supported (gptq, gptq_v2 are)"
    );
    assert_eq!(
        config(json!({"quant_method": "awq", "version": "gemv"})),
        ": version \"gemv\" is not supported (gemm is)"
    );
    assert_eq!(
        config(json!({"quant_method": "awq", "version": "gemm", "format": "gemv_fast"})),
        ": format \"gemv_fast\" is not supported (gemm is)"
    );
    let rotated = merged(compressed_config(), json!({"transform_config": {"config_groups": {"R1": {}}}}));
    assert_eq!(config(rotated), ": transform_config is not supported: its rotations belong to the computation");
    assert_eq!(
        config(json!({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"})),
        ": quant_algo \"NVFP4_AWQ\" is not supported (NVFP4, FP8 are)"
    );
    let all = "(fp8, gptq, awq, modelopt (NVFP4, FP8), mxfp4 and compressed-tensors (pack-quantized, float-quantized, \
               nvfp4-pack-quantized) are read)";
    assert_eq!(config(json!({"quant_method": "bitnet"})), format!(": quant_method \"bitnet\" is not supported {all}"));
}

/// Values that published configurations do not have, or those of formats that are not read.
#[test]
fn odd_values_in_configurations_are_refused_by_name() {
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 128});
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"});
    let packed = |weights: Value| {
        let mut config = compressed_config();
        let old = config["config_groups"]["group_0"]["weights"].take();
        config["config_groups"]["group_0"]["weights"] = merged(old, weights);
        config
    };
    let format = |name: &str| merged(compressed_config(), json!({ "format": name }));
    let mut cases: Vec<(Value, &str, String)> = Vec::new();
    for base in [&gptq, &awq] {
        for size in [json!(0), json!(-2), json!("128"), json!(0.5), json!(1u64 << 40)] {
            cases.push((merged(base.clone(), json!({ "group_size": size })), "group_size", size.to_string()));
        }
        for bits in [json!(0), json!(2), json!(5), json!(16), json!("4"), json!(4.5)] {
            cases.push((merged(base.clone(), json!({ "bits": bits })), "bits", bits.to_string()));
        }
    }
    cases.push((merged(awq, json!({"bits": 8})), "bits", "8".to_owned()));
    for (key, value) in [("num_bits", json!(3)), ("group_size", json!(0)), ("strategy", json!("tensor_group"))] {
        cases.push((packed(json!({ key: value })), key, value.to_string()));
    }
    cases.push((packed(json!({"type": "float"})), "weights of type", "\"float\"".to_owned()));
    for name in ["int-quantized", "marlin-24", "nvfp4-pack-quantized", "naive-quantized", ""] {
        cases.push((format(name), "format", format!("{name:?}")));
    }
    for method in ["bitsandbytes", "hqq", "quanto", "bitnet", ""] {
        cases.push((json!({"quant_method": method, "bits": 4}), "quant_method", format!("{method:?}")));
    }
    for (config, key, value) in cases {
        let said = format!("{:#}", open(&folder(config.clone(), &[])).err().expect("refused"));
        let names = said.contains("quantization_config") && said.contains(key) && said.contains(&value);
        assert!(names && !said.contains('\n'), "{config}: {said}");
    }
    // The whole row is one group by -1, and as the scales have it where nothing is said.
    let m = Matrix { group: vec![0; COLS], ..Matrix::new() };
    let whole = |parts: Vec<Part>| -> Vec<Part> {
        let one = |part: Part| match part {
            ("qzeros" | "scales", dtype, shape, bytes) => {
                let half = bytes.len() / GROUPS;
                (part.0, dtype, vec![1, shape[1]], bytes[..half].to_vec())
            }
            part => part,
        };
        parts.into_iter().filter(|part| part.0 != "g_idx").map(one).collect()
    };
    for (method, parts) in [("gptq", whole(self::gptq(&m, 1))), ("awq", whole(self::awq(&m)))] {
        for size in [json!({"group_size": -1}), json!({})] {
            let config = merged(json!({"quant_method": method, "bits": 4}), size);
            let c = open(&folder(config, &parts)).unwrap_or_else(|e| panic!("{method}: {e:#}"));
            assert!(c.tensors[&format!("{NAME}.weight")].to_f32() == m.values(), "{method}");
        }
    }
}
