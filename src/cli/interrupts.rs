//! Ctrl+C (SIGINT) as something to await.

#[cfg(unix)]
pub use unix::Interrupts;

#[cfg(unix)]
mod unix {
    use anyhow::{Context, Result};
    use tokio::signal::unix::{Signal, SignalKind, signal};

    /// Ctrl+C. One that arrives while nobody awaits it is kept.
    pub struct Interrupts(Signal);

    impl Interrupts {
        /// Starts to listen. Needs a tokio runtime.
        pub fn new() -> Result<Self> {
            Ok(Self(signal(SignalKind::interrupt()).context("cannot listen for Ctrl+C")?))
        }

        /// Returns at the next Ctrl+C.
        pub async fn next(&mut self) {
            self.0.recv().await;
        }
    }
}

/// Ctrl+C.
#[cfg(not(unix))]
pub struct Interrupts;

#[cfg(not(unix))]
impl Interrupts {
    /// Starts to listen.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self)
    }

    /// Returns at the next Ctrl+C.
    pub async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
