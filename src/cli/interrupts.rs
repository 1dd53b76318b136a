//! Ctrl+C (SIGINT) and other ends from outside (SIGTERM, SIGHUP) as something to await, or to end
//! by.

use super::output::{INTERRUPTED, notice};
use anyhow::Result;
use std::io::IsTerminal;
use std::sync::Once;

#[cfg(unix)]
pub use unix::{Interrupts, Kills};

#[cfg(unix)]
mod unix {
    use anyhow::{Context, Result};
    use std::task::Poll;
    use tokio::signal::unix::{Signal, SignalKind, signal};

    /// SIGTERM and SIGHUP.
    pub struct Kills(Vec<(i32, Signal)>);

    impl Kills {
        /// Starts to listen, and from then on nothing else ends the process at these signals. One
        /// that is ignored (nohup) stays so.
        pub fn new() -> Result<Self> {
            let numbers =
                [libc::SIGTERM, libc::SIGHUP].into_iter().filter(|&number| !crate::system::is_ignored(number));
            let listen =
                |number| Ok((number, signal(SignalKind::from_raw(number)).context("cannot listen for signals")?));
            Ok(Self(numbers.map(listen).collect::<Result<_>>()?))
        }

        /// Returns the number of the next one.
        pub async fn next(&mut self) -> i32 {
            std::future::poll_fn(|context| {
                let arrived =
                    |(number, signal): &mut (i32, Signal)| signal.poll_recv(context).is_ready().then_some(*number);
                self.0.iter_mut().find_map(arrived).map_or(Poll::Pending, Poll::Ready)
            })
            .await
        }
    }

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

/// Signals that other systems do not have.
#[cfg(not(unix))]
pub struct Kills;

#[cfg(not(unix))]
impl Kills {
    /// Listens to nothing.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self)
    }

    /// Never returns.
    pub async fn next(&mut self) -> i32 {
        std::future::pending().await
    }
}

/// Ends the program at the next Ctrl+C, with `line` on stderr and exit code 130: for commands that
/// work on this thread and await nothing. Only the first call counts. No exit handler runs, because
/// the GPU's library is in use at that time.
pub fn end_on_interrupt(line: &'static str) -> Result<()> {
    static STARTED: Once = Once::new();
    let mut started = Ok(());
    STARTED.call_once(|| started = listen(line));
    started
}

fn listen(line: &'static str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut interrupts = runtime.block_on(async { Interrupts::new() })?;
    let end = move || {
        runtime.block_on(interrupts.next());
        // The terminal shows ^C behind a line of progress.
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        notice(line);
        crate::system::exit_now(INTERRUPTED)
    };
    std::thread::Builder::new().name("interrupts".into()).spawn(end)?;
    Ok(())
}
