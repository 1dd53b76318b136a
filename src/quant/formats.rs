//! The formats of a model's weights, one row each: how matrices are stored, for which files it is
//! the natural choice, how large it is, and which kernels multiply by it. Every other place asks a
//! format, or iterates over [`formats`].

use super::code::Code;
use crate::words::words;

/// How the weights of a model are stored in memory: `--weights`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weights {
    /// The most exact with which the context is expected to fit.
    Auto,
    /// As in the checkpoint; formats of other programs become bf16.
    #[default]
    Bf16,
    /// Matrices as [`Code::Q8`].
    Int8,
    /// Matrices as [`Code::Q4H`]; embedding, head and the [late](Part::Late) ones as
    /// [`Code::Q6H`].
    Int4,
    /// Matrices as [`Code::Q4`], embedding and head as [`Code::Q8`].
    Int4Fast,
    /// As in the files: the codes of their matrices ([`super::file`]).
    Own,
}

words! { Weights, "a format of weights", { Auto = "auto", Bf16 = "bf16", Int8 = "int8", Int4 = "int4", Int4Fast = "int4-fast", Own = "own" } }

/// The formats that `--weights auto` chooses from, the most exact first.
pub const EXACT_FIRST: [Weights; 3] = [Weights::Bf16, Weights::Int8, Weights::Int4];

/// What a matrix is to a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The embedding or the output head.
    End,
    /// The last layer, and down of the last eighth of the layers: their errors count most.
    Late,
    Layer,
}

/// How a format stores matrices.
#[derive(Clone, Copy)]
enum Matrices {
    /// As in the files, or bf16.
    Plain,
    /// With a chosen code for each part.
    Chosen { layers: Code, late: Code, ends: Code },
    /// With the codes of the files.
    Kept,
}

/// One format.
struct Row {
    weights: Weights,
    matrices: Matrices,
    /// Most bits per weight, in hundredths, of files that the format is as exact as; 0 for none.
    natural_bits: u32,
    /// Size in 32nds of the bf16 size, before the shapes are known. Those of 4 bits have a mean of
    /// 5 with their larger embedding and head: 4.6 at 70B, 5.7 at 0.6B.
    share: u64,
    /// Files of `kernels/` that multiply by nothing else.
    kernels: &'static [&'static str],
}

const FORMATS: [Row; 5] = [
    Row {
        weights: Weights::Bf16,
        matrices: Matrices::Plain,
        natural_bits: u32::MAX,
        share: 32,
        kernels: &["gemv", "gemm_decode"],
    },
    Row {
        weights: Weights::Int8,
        matrices: Matrices::Chosen { layers: Code::Q8, late: Code::Q8, ends: Code::Q8 },
        natural_bits: 900,
        share: 17,
        kernels: PACKED,
    },
    Row {
        weights: Weights::Int4,
        matrices: Matrices::Chosen { layers: Code::Q4H, late: Code::Q6H, ends: Code::Q6H },
        natural_bits: 0,
        share: 10,
        kernels: PACKED,
    },
    Row {
        weights: Weights::Int4Fast,
        matrices: Matrices::Chosen { layers: Code::Q4, late: Code::Q4, ends: Code::Q8 },
        // It keeps the codes of GPTQ and AWQ files.
        natural_bits: 500,
        share: 10,
        kernels: PACKED,
    },
    Row {
        weights: Weights::Own,
        matrices: Matrices::Kept,
        natural_bits: 0,
        share: 32,
        kernels: &["own_gemv", "own_gemm"],
    },
];

const PACKED: &[&str] = &["packed_gemv", "packed_resident", "packed_wgmma"];

/// All formats; `auto` is not one.
pub fn formats() -> impl Iterator<Item = Weights> {
    FORMATS.iter().map(|row| row.weights)
}

/// The smallest format that is as exact as files with that many bits per weight, in hundredths.
pub fn natural(bits: u32) -> Weights {
    let exact = FORMATS.iter().filter(|row| bits <= row.natural_bits);
    exact.min_by_key(|row| row.natural_bits).map_or(Weights::Bf16, |row| row.weights)
}

/// Whether a file of `kernels/` is needed by some formats alone.
pub fn has_kernels_of_formats(file: &str) -> bool {
    formats().any(|weights| weights.has_kernels(file))
}

impl Weights {
    /// `None` for `auto`.
    fn row(self) -> Option<&'static Row> {
        FORMATS.iter().find(|row| row.weights == self)
    }

    fn matrices(self) -> Option<Matrices> {
        self.row().map(|row| row.matrices)
    }

    /// The format that is asked for; `None` under `auto`.
    pub fn asked(self) -> Option<Self> {
        self.row().map(|row| row.weights)
    }

    /// Whether weights in the format of that name are asked for.
    pub fn admits(self, name: &str) -> bool {
        self.asked().is_none_or(|weights| weights.name() == name)
    }

    /// Whether matrices are packed.
    pub fn is_packed(self) -> bool {
        self.matrices().is_some_and(|matrices| !matches!(matrices, Matrices::Plain))
    }

    /// Whether matrices stay as they are in the checkpoint.
    pub fn is_plain(self) -> bool {
        matches!(self.matrices(), Some(Matrices::Plain))
    }

    /// Whether matrices keep the codes of their files.
    pub fn keeps_codes(self) -> bool {
        matches!(self.matrices(), Some(Matrices::Kept))
    }

    /// Code that is chosen for the matrices of a part; `None` where none is.
    pub fn code(self, part: Part) -> Option<Code> {
        let Some(Matrices::Chosen { layers, late, ends }) = self.matrices() else { return None };
        Some(match part {
            Part::End => ends,
            Part::Late => late,
            Part::Layer => layers,
        })
    }

    /// Whether codes are chosen, rather than kept.
    pub fn chooses_codes(self) -> bool {
        self.code(Part::Layer).is_some()
    }

    /// Whether the importance of columns chooses some of its codes.
    pub fn uses_importance(self) -> bool {
        [Part::End, Part::Late, Part::Layer].iter().filter_map(|part| self.code(*part)).any(Code::uses_importance)
    }

    /// Its name, with what its codes were changed to since older versions: part of a file's key.
    pub fn key(self) -> String {
        match (self.code(Part::Late), self.code(Part::Layer)) {
            (Some(late), Some(layers)) if late != layers => format!("{} late {}", self.name(), late.name()),
            _ => self.name().to_owned(),
        }
    }

    /// About how many bytes weights take that take `bytes` in bf16.
    pub fn estimated_bytes(self, bytes: u64) -> u64 {
        self.row().map_or(bytes, |row| bytes / 32 * row.share)
    }

    /// Whether kernels of that file of `kernels/` multiply by such weights.
    pub fn has_kernels(self, file: &str) -> bool {
        self.row().is_some_and(|row| row.kernels.contains(&file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_has_one_row_and_auto_none() {
        let rows: Vec<_> = Weights::ALL.into_iter().filter(|weights| weights.row().is_some()).collect();
        assert_eq!((rows, Weights::Auto.asked()), (formats().collect(), None));
        assert!(EXACT_FIRST.is_sorted_by_key(|weights| std::cmp::Reverse(weights.estimated_bytes(1 << 20))));
        assert_eq!(
            [450, 501, 850, 1600].map(natural),
            [Weights::Int4Fast, Weights::Int8, Weights::Int8, Weights::Bf16]
        );
    }
}
