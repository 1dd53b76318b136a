//! Why a command is not carried out.

/// Why a command is not carried out.
#[derive(Debug)]
pub enum Refusal {
    /// The argument is not what it takes.
    Takes,
    /// The argument names nothing there is, or cannot be: the whole line to show.
    Wrong(String),
    /// Cost of the command. The same command again carries it out.
    Price(String),
    Because(String),
    /// A notice says why already.
    Said,
}

impl Refusal {
    /// Whether the command is to be corrected or confirmed, and so stays in the input.
    pub fn keeps_line(&self) -> bool {
        matches!(self, Self::Takes | Self::Wrong(_) | Self::Price(_))
    }
}

impl<T: Into<String>> From<T> for Refusal {
    fn from(why: T) -> Self {
        Self::Because(why.into())
    }
}

pub type Done = Result<(), Refusal>;
