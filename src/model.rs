//! The transformer. There is one forward pass for prefill chunks, decode steps and batches: a step
//! is a list of [`Span`](crate::backend::Span)s. The computation of a layer is data
//! ([`Spec`](crate::checkpoint::Spec)); nothing here depends on the family.

mod decisions;
mod head;
mod observe;
mod step;
mod taps;
mod weights;
mod workspace;

pub use head::{Head, ROWS as HEAD_ROWS, workspace_bytes as head_workspace_bytes};
pub use observe::{Observed, Text, observe, output_columns};
pub use step::{Step, logits, logits_of};
pub use weights::Model;
pub use workspace::{Workspace, step_token_bytes};
