//! Why a command is not carried out.

/// Why a command is not carried out.
#[derive(Debug)]
pub enum Refusal {
    /// The argument is not what it takes.
    Takes,
    Because(String),
    /// A notice says why already.
    Said,
}

impl<T: Into<String>> From<T> for Refusal {
    fn from(why: T) -> Self {
        Self::Because(why.into())
    }
}

pub type Done = Result<(), Refusal>;
