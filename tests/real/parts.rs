//! What every test needs: the environment of `tests/run`, ports, child processes that end with their test, waiting.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A variable that `tests/run` sets.
pub(crate) fn required(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: this test needs real parts, which tests/run installs and starts")
    })
}

/// A line on the terminal at once, also while the test runner keeps a test's output back.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "  {line}");
}

/// The seed of a test: `TIDEGATE_TEST_SEED`, or by chance; printed, so that a failure can be played again.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("TIDEGATE_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(1..1_000_000));
    say(&format!("seed {seed} (TIDEGATE_TEST_SEED={seed} plays it again)"));
    seed
}

/// A port that nobody listens on. Below the range that the kernel gives to clients: a client that tries again and
/// again to reach a port of that range may be given the very same one, and talk to itself.
pub(crate) fn free_address() -> SocketAddr {
    for _ in 0..100 {
        let address = SocketAddr::from(([127, 0, 0, 1], fastrand::u16(20_000..30_000)));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port on 127.0.0.1 between 20000 and 30000");
}

/// A folder on a real disk, removed at the end.
pub(crate) fn folder(name: &str) -> TempDir {
    tempfile::Builder::new()
        .prefix(name)
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("the target folder is writable")
}

/// A child process that is killed when its test is over.
pub(crate) struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts `command` with its output in `log`, which is appended to.
    pub(crate) fn logged(command: &mut Command, log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log).expect("the log can be written");
        let errors = file.try_clone().expect("a file can be shared");
        Self::spawn(command.stdin(Stdio::null()).stdout(file).stderr(errors))
    }

    /// Starts `command` with the input and output that it has.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        Self { name, child }
    }

    /// The child itself.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// SIGKILL, and waits for the end.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// SIGTERM, and waits for the end.
    pub(crate) fn terminate(self, within: Duration) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a child can be told to end");
        self.wait(within)
    }

    /// Waits for the end.
    pub(crate) fn wait(mut self, within: Duration) -> ExitStatus {
        let end = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status;
            }
            assert!(Instant::now() < end, "{} did not end within {within:?}", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Panics if it has ended.
    pub(crate) fn assert_runs(&mut self) {
        if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
            panic!("{} has ended: {status}", self.name);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a command printed.
pub(crate) struct Printed {
    /// Its exit code.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

/// Runs a command to its end, at most `seconds`.
pub(crate) fn run(command: &mut Command, seconds: u32) -> Printed {
    let mut bounded = Command::new("timeout");
    bounded.arg("-k").arg("5").arg(seconds.to_string()).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bounded.env(name, value),
            None => bounded.env_remove(name),
        };
    }
    let output = bounded.stdin(Stdio::null()).output().expect("timeout of coreutils is there");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Printed { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Asks again and again until there is an answer.
pub(crate) fn eventually<T>(what: &str, within: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + within;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The binary under test.
pub(crate) fn tidegate() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_tidegate"))
}
