//! The built-in model and adapters, embedded in the program.

#[cfg(builtin_model)]
use std::sync::LazyLock;

/// Bytes with an alignment for any vector load.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

macro_rules! asset {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/", $name))
    };
}

/// Why a build has no weights of the built-in model.
#[cfg(not(builtin_model))]
pub const LEFT_OUT: &str = "this program was built from the package of crates.io, which has no room for the built-in model: \
     name another (-m ORG/NAME), or install a release or from the repository (cargo install --git)";

static DEMO_FILES: &[(&str, &[u8])] = &[
    ("config.json", asset!("demo/config.json")),
    ("generation_config.json", asset!("demo/generation_config.json")),
    ("tokenizer.json", asset!("demo/tokenizer.json")),
    ("tokenizer_config.json", asset!("demo/tokenizer_config.json")),
];

static SMOLLM2_ADAPTER: &Aligned<[u8]> = &Aligned(*asset!("adapters/smollm2-135m-instruct-dms.safetensors"));

/// Adapters for `AdapterChoice::Auto`: name and safetensors bytes.
pub static ADAPTERS: &[(&str, &[u8])] = &[("smollm2-135m-instruct-dms", &SMOLLM2_ADAPTER.0)];

/// Whether a built-in adapter has this name.
pub fn is_adapter(name: &str) -> bool {
    ADAPTERS.iter().any(|(adapter, _)| *adapter == name)
}

/// A text file of the built-in model by name; `None` if there is no such file.
pub fn file(name: &str) -> Option<&'static [u8]> {
    DEMO_FILES.iter().find(|(file, _)| *file == name).map(|(_, bytes)| *bytes)
}

/// `model.safetensors` of the built-in model; `None` if memory is too small. The first call unpacks
/// it from two planes (build.rs).
#[cfg(builtin_model)]
pub fn weights() -> Option<&'static [u8]> {
    #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C, align(64))]
    struct Line([u8; 64]);

    const LOW: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/model.low"));
    const HIGH: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/model.high"));
    const LINES: usize = (2 * LOW.len()).div_ceil(64);
    static WEIGHTS: LazyLock<Option<Vec<Line>>> = LazyLock::new(|| {
        let mut lines = Vec::new();
        lines.try_reserve_exact(LINES).ok()?;
        lines.resize(LINES, Line([0; 64]));
        let bytes = &mut bytemuck::cast_slice_mut::<Line, u8>(&mut lines)[..2 * LOW.len()];
        // The high bytes go to the second half, from where none is overwritten before it is read.
        let (packed, high) = (std::iter::once(HIGH), &mut bytes[LOW.len()..]);
        let len = miniz_oxide::inflate::decompress_slice_iter_to_slice(high, packed, false, true);
        assert_eq!(len, Ok(LOW.len()), "the built-in model is whole");
        for (i, &low) in LOW.iter().enumerate() {
            let high = bytes[LOW.len() + i];
            (bytes[2 * i], bytes[2 * i + 1]) = (low, high);
        }
        Some(lines)
    });
    Some(&bytemuck::cast_slice(WEIGHTS.as_deref()?)[..2 * LOW.len()])
}
