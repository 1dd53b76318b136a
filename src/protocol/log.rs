//! An entry of the token log, and how it is written in files.

use super::{MAX_CONTEXT, Token, present};
use crate::policy::Far;
use serde::{Deserialize, Serialize};

/// An entry of the token log: a token that was fed, or what changed between tokens that decides
/// what the heads keep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum LogEntry {
    Token(Token),
    /// Eviction was switched. `{"eviction": false}` in files.
    Toggle {
        eviction: bool,
    },
    /// Threshold of decisions, from here on. `{"dial": 4.5}` in files.
    Dial {
        dial: f32,
    },
    /// Memory ran out: tokens outside the window whose decisions had at least this strength were
    /// dropped.
    Forget {
        forget: u16,
    },
    /// Tokens at positions from the first to below the second are never marked.
    Pin {
        pin: [u32; 2],
    },
    /// Tokens at these positions are pinned no longer. Those that are stored stay until memory runs
    /// out.
    Unpin {
        unpin: [u32; 2],
    },
    /// Memory ran out in a cache without decisions: the tokens at these positions were dropped.
    Drop {
        drop: [u32; 2],
    },
    /// The newest so many queries chose the far pages that are attended to from here on.
    Choose {
        choose: u16,
    },
    /// Far memory ran out: far pages with positions below this one only were dropped for good.
    DropFar {
        drop_far: u32,
    },
}

impl LogEntry {
    /// The token, if it is one.
    pub fn token(&self) -> Option<Token> {
        if let Self::Token(token) = self { Some(*token) } else { None }
    }

    /// Whether it changes which far pages there are or which of them are near.
    pub fn is_far(&self) -> bool {
        matches!(self, LogEntry::Choose { .. } | LogEntry::DropFar { .. })
    }

    /// Whether it changes which positions are pinned.
    pub fn is_pin(&self) -> bool {
        matches!(self, LogEntry::Pin { .. } | LogEntry::Unpin { .. })
    }
}

/// Reads a number or an object with one key without buffering, as a derived untagged enum would:
/// logs may hold millions of entries.
impl<'de> Deserialize<'de> for LogEntry {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entry;
        impl<'de> serde::de::Visitor<'de> for Entry {
            type Value = LogEntry;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str(
                    "a token id, or an object with eviction, dial, forget, pin, unpin, drop, choose or drop_far",
                )
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<LogEntry, E> {
                Token::try_from(id).map(LogEntry::Token).map_err(|_| E::custom(format!("{id} is not a token id")))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<LogEntry, A::Error> {
                #[derive(Deserialize)]
                struct Change {
                    eviction: Option<bool>,
                    #[serde(default, deserialize_with = "present")]
                    dial: Option<Option<f32>>,
                    forget: Option<u16>,
                    pin: Option<[u32; 2]>,
                    unpin: Option<[u32; 2]>,
                    drop: Option<[u32; 2]>,
                    choose: Option<u16>,
                    drop_far: Option<u32>,
                }
                let change = Change::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                let fits = |range: [u32; 2]| range[0] < range[1] && range[1] <= MAX_CONTEXT as u32;
                match change {
                    Change { eviction: Some(eviction), .. } => Ok(LogEntry::Toggle { eviction }),
                    // Null is not a number and means: as trained.
                    Change { dial: Some(dial), .. } if dial.is_none_or(f32::is_finite) => {
                        Ok(LogEntry::Dial { dial: dial.unwrap_or_default() })
                    }
                    Change { forget: Some(forget), .. } => Ok(LogEntry::Forget { forget }),
                    Change { pin: Some(pin), .. } if fits(pin) => Ok(LogEntry::Pin { pin }),
                    Change { unpin: Some(unpin), .. } if fits(unpin) => Ok(LogEntry::Unpin { unpin }),
                    Change { drop: Some(drop), .. } if fits(drop) => Ok(LogEntry::Drop { drop }),
                    Change { choose: Some(choose), .. } if (1..=Far::QUERIES as u16).contains(&choose) => {
                        Ok(LogEntry::Choose { choose })
                    }
                    Change { drop_far: Some(drop_far), .. } if drop_far <= MAX_CONTEXT as u32 => {
                        Ok(LogEntry::DropFar { drop_far })
                    }
                    _ => Err(serde::de::Error::custom("an entry with an unknown key or value")),
                }
            }
        }
        deserializer.deserialize_any(Entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_written_and_broken_ones_are_not() {
        let entries = [
            LogEntry::Token(7),
            LogEntry::Toggle { eviction: false },
            LogEntry::Dial { dial: -0.1 },
            LogEntry::Forget { forget: 980 },
            LogEntry::Pin { pin: [3, 9] },
            LogEntry::Unpin { unpin: [4, 9] },
            LogEntry::Drop { drop: [4, 20] },
            LogEntry::Choose { choose: 16 },
            LogEntry::DropFar { drop_far: 90 },
        ];
        let text = serde_json::to_string(&entries).unwrap();
        assert_eq!(
            text,
            r#"[7,{"eviction":false},{"dial":-0.1},{"forget":980},{"pin":[3,9]},{"unpin":[4,9]},{"drop":[4,20]},{"choose":16},{"drop_far":90}]"#
        );
        assert_eq!(serde_json::from_str::<Vec<LogEntry>>(&text).unwrap(), entries);
        for broken in [
            r#"{"dial":1e40}"#,
            r#"{"pin":[9,3]}"#,
            r#"{"pin":[0,2000000]}"#,
            r#"{"drop":[4,4]}"#,
            r#"{"forget":-1}"#,
            r#"{"choose":0}"#,
            r#"{"choose":33}"#,
            r#"{"drop_far":2000000}"#,
            "{}",
        ] {
            assert!(serde_json::from_str::<LogEntry>(broken).is_err(), "{broken}");
        }
    }
}
