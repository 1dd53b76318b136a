//! Process signals: termination, and stop and continue of job control.

/// A signal that the chat handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// End with this signal's number.
    End(i32),
    Stop,
    Continue,
}

#[cfg(unix)]
pub use unix::{Signals, stop_here};

#[cfg(unix)]
mod unix {
    use super::Signal;
    use crate::system;
    use std::time::{Duration, Instant};
    use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

    /// Streams of the handled signals.
    pub struct Signals {
        terminate: Stream,
        hangup: Stream,
        interrupt: Stream,
        stop: Stream,
        go_on: Stream,
    }

    impl Signals {
        pub fn new() -> std::io::Result<Self> {
            let number = |s: rustix::process::Signal| SignalKind::from_raw(s.as_raw());
            Ok(Self {
                terminate: signal(SignalKind::terminate())?,
                hangup: signal(SignalKind::hangup())?,
                interrupt: signal(SignalKind::interrupt())?,
                stop: signal(number(rustix::process::Signal::TSTP))?,
                go_on: signal(number(rustix::process::Signal::CONT))?,
            })
        }

        pub async fn next(&mut self) -> Signal {
            tokio::select! {
                _ = self.terminate.recv() => Signal::End(15),
                _ = self.hangup.recv() => Signal::End(1),
                _ = self.interrupt.recv() => Signal::End(2),
                _ = self.stop.recv() => Signal::Stop,
                _ = self.go_on.recv() => Signal::Continue,
            }
        }
    }

    /// Stops the process group, as Ctrl+Z does, until SIGCONT.
    pub fn stop_here() {
        let begin = Instant::now();
        let _ = rustix::process::kill_current_process_group(rustix::process::Signal::STOP);
        // The signal may reach another thread first.
        std::thread::sleep(Duration::from_millis(20));
        system::was_stopped(begin.elapsed());
    }
}

#[cfg(not(unix))]
pub use other::{Signals, stop_here};

#[cfg(not(unix))]
mod other {
    use super::Signal;

    /// Ctrl+C is the only signal here.
    pub struct Signals;

    impl Signals {
        pub fn new() -> std::io::Result<Self> {
            Ok(Self)
        }

        pub async fn next(&mut self) -> Signal {
            match tokio::signal::ctrl_c().await {
                Ok(()) => Signal::End(2),
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// There is no job control.
    pub fn stop_here() {}
}
