//! The built-in model and adapters, embedded in the program.

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

#[cfg(builtin_model)]
static DEMO_WEIGHTS: &Aligned<[u8]> = &Aligned(*asset!("demo/model.safetensors"));

static DEMO_FILES: &[(&str, &[u8])] = &[
    ("config.json", asset!("demo/config.json")),
    ("generation_config.json", asset!("demo/generation_config.json")),
    ("tokenizer.json", asset!("demo/tokenizer.json")),
    ("tokenizer_config.json", asset!("demo/tokenizer_config.json")),
    #[cfg(builtin_model)]
    ("model.safetensors", &DEMO_WEIGHTS.0),
];

static SMOLLM2_ADAPTER: &Aligned<[u8]> = &Aligned(*asset!("adapters/smollm2-135m-instruct-dms.safetensors"));

/// Adapters for `AdapterChoice::Auto`: name and safetensors bytes.
pub static ADAPTERS: &[(&str, &[u8])] = &[("smollm2-135m-instruct-dms", &SMOLLM2_ADAPTER.0)];

/// A file of the built-in model by name; `None` if there is no such file.
pub fn file(name: &str) -> Option<&'static [u8]> {
    DEMO_FILES.iter().find(|(file, _)| *file == name).map(|(_, bytes)| *bytes)
}
