//! Process signals: Ctrl+C, termination, and stop and continue of job control.

/// A signal that the chat handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// End with this signal's number.
    End(i32),
    Stop,
    Continue,
}

#[cfg(unix)]
pub use unix::{Interrupts, Kills, Signals, run_in_terminal, stop_here};

#[cfg(unix)]
mod unix {
    use super::Signal;
    use std::task::Poll;
    use std::time::{Duration, Instant};
    use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

    /// Streams of the handled signals.
    pub struct Signals {
        terminate: Stream,
        hangup: Stream,
        interrupt: Stream,
        quit: Stream,
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
                quit: signal(SignalKind::quit())?,
                stop: signal(number(rustix::process::Signal::TSTP))?,
                go_on: signal(number(rustix::process::Signal::CONT))?,
            })
        }

        pub async fn next(&mut self) -> Signal {
            tokio::select! {
                _ = self.terminate.recv() => Signal::End(15),
                _ = self.hangup.recv() => Signal::End(1),
                _ = self.interrupt.recv() => Signal::End(2),
                _ = self.quit.recv() => Signal::End(3),
                _ = self.stop.recv() => Signal::Stop,
                _ = self.go_on.recv() => Signal::Continue,
            }
        }
    }

    impl Signals {
        /// Drops the signals of keys that arrived so far: they were meant for a child that had the
        /// terminal.
        pub async fn drop_keys(&mut self) {
            // Long enough for the runtime to look at what arrived.
            let until = tokio::time::Instant::now() + Duration::from_millis(5);
            let drop = async {
                loop {
                    tokio::select! {
                        _ = self.interrupt.recv() => {}
                        _ = self.quit.recv() => {}
                        _ = self.stop.recv() => {}
                        _ = self.go_on.recv() => {}
                    }
                }
            };
            let _ = tokio::time::timeout_at(until, drop).await;
        }
    }

    /// Runs a program that takes over the terminal, until it ends. As with system(3), Ctrl+C and
    /// Ctrl+\ are the program's: this process handles both, and a started program does not inherit
    /// that. If the program is stopped (Ctrl+Z), so is this process, until both continue.
    pub fn run_in_terminal(command: &mut std::process::Command) -> std::io::Result<std::process::ExitStatus> {
        use rustix::process::{Pid, WaitOptions, waitpid};
        use std::os::unix::process::ExitStatusExt;
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        loop {
            match waitpid(pid, WaitOptions::UNTRACED) {
                Ok(Some((_, status))) if status.stopped() => stop_here(),
                Ok(Some((_, status))) => return Ok(std::process::ExitStatus::from_raw(status.as_raw())),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// SIGTERM and SIGHUP.
    pub struct Kills(Vec<(i32, Stream)>);

    impl Kills {
        /// Starts to listen, and from then on nothing else ends the process at these signals. One
        /// that is ignored (nohup) stays so.
        pub fn new() -> std::io::Result<Self> {
            let numbers = [libc::SIGTERM, libc::SIGHUP].into_iter().filter(|&number| !super::super::is_ignored(number));
            let listen = |number| Ok((number, signal(SignalKind::from_raw(number))?));
            Ok(Self(numbers.map(listen).collect::<std::io::Result<_>>()?))
        }

        /// Returns the number of the next one.
        pub async fn next(&mut self) -> i32 {
            std::future::poll_fn(|context| {
                let arrived =
                    |(number, signal): &mut (i32, Stream)| signal.poll_recv(context).is_ready().then_some(*number);
                self.0.iter_mut().find_map(arrived).map_or(Poll::Pending, Poll::Ready)
            })
            .await
        }
    }

    /// Ctrl+C. One that arrives while nobody awaits it is kept.
    pub struct Interrupts(Stream);

    impl Interrupts {
        /// Starts to listen. Needs a tokio runtime.
        pub fn new() -> std::io::Result<Self> {
            Ok(Self(signal(SignalKind::interrupt())?))
        }

        /// Returns at the next Ctrl+C.
        pub async fn next(&mut self) {
            self.0.recv().await;
        }
    }
    /// Stops the process group, as Ctrl+Z does, until SIGCONT.
    pub fn stop_here() {
        let begin = Instant::now();
        let _ = rustix::process::kill_current_process_group(rustix::process::Signal::STOP);
        // The signal may reach another thread first.
        std::thread::sleep(Duration::from_millis(20));
        super::super::was_stopped(begin.elapsed());
    }
}

#[cfg(not(unix))]
pub use other::{Interrupts, Kills, Signals, run_in_terminal, stop_here};

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

        /// Nothing is kept.
        pub async fn drop_keys(&mut self) {}
    }

    /// Runs a program that has the terminal, until it ends.
    pub fn run_in_terminal(command: &mut std::process::Command) -> std::io::Result<std::process::ExitStatus> {
        command.status()
    }

    /// Ctrl+C.
    pub struct Interrupts;

    impl Interrupts {
        /// Starts to listen.
        pub fn new() -> std::io::Result<Self> {
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
    pub struct Kills;

    impl Kills {
        /// Listens to nothing.
        pub fn new() -> std::io::Result<Self> {
            Ok(Self)
        }

        /// Never returns.
        pub async fn next(&mut self) -> i32 {
            std::future::pending().await
        }
    }

    /// There is no job control.
    pub fn stop_here() {}
}
