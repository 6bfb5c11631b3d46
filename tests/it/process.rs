//! The daemon as a process of its own: what it says and does between its start and its end.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const GOOD: &str = "[broker]\nlisten = \"127.0.0.1:0\"\n[serve]\nlisten = \"127.0.0.1:0\"\n";

fn tidegate(args: &[&str], state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).env_remove("JOURNAL_STREAM").env_remove("NOTIFY_SOCKET");
    command.env("STATE_DIRECTORY", state).env("TIDEGATE__GATEWAY__DATA_DIR", state);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A daemon that is ready, with its log and its HTTP address.
struct Daemon {
    child: Child,
    log: BufReader<ChildStderr>,
    said: String,
    http: String,
}

impl Daemon {
    fn start(config: &Path, state: &Path) -> Self {
        let mut child = tidegate(&["run", "--config", config.to_str().unwrap()], state).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut daemon = Self { child, log, said: String::new(), http: String::new() };
        while daemon.http.is_empty() {
            let mut line = String::new();
            assert_ne!(daemon.log.read_line(&mut line).unwrap(), 0, "it ended early: {}", daemon.said);
            if let Some((_, rest)) = line.split_once("tidegate is ready") {
                rest.rsplit("http=").next().unwrap().trim().clone_into(&mut daemon.http);
            }
            daemon.said.push_str(&line);
        }
        daemon
    }

    fn get(&self, path: &str) -> String {
        let mut socket = TcpStream::connect(&self.http).unwrap();
        write!(socket, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    /// SIGTERM; gives the exit code and all that was logged.
    fn stop(&mut self) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.log.read_to_string(&mut self.said).unwrap();
        (self.child.wait().unwrap().code(), std::mem::take(&mut self.said))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Only a test that failed leaves it running.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_later_start_with_a_broken_file_keeps_the_last_good_one_in_force_and_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let (state, file) = (dir.path().join("state"), dir.path().join("t.toml"));
    fs::write(&file, GOOD).unwrap();
    let mut first = Daemon::start(&file, &state);
    let answer = first.get("/readyz?verbose");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (code, log) = first.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("no [[source]] is configured"), "{log}");

    fs::write(&file, format!("{GOOD}[[alert]]\nalert = \"Hot\"\nexpr = \"t > 80 and u\"\n")).unwrap();
    let mut second = Daemon::start(&file, &state);
    let answer = second.get("/readyz?verbose");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let fault = "t.toml:7:8: alert \"Hot\": `and` is no operator (line 1, column 8); write &&";
    assert!(answer.contains(fault), "{answer}");
    assert!(!answer.contains('^'), "no excerpt in a line: {answer}");
    let (code, log) = second.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("the last good one stays in force"), "{log}");
}

#[test]
fn what_ends_a_start_is_one_line_with_its_causes_and_the_mend() {
    let dir = tempfile::tempdir().unwrap();
    let (state, file) = (dir.path().join("state"), dir.path().join("t.toml"));
    fs::write(&file, GOOD).unwrap();
    let mut first = Daemon::start(&file, &state);
    let second = tidegate(&["run", "--config", file.to_str().unwrap()], &state).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let log = String::from_utf8(second.stderr).unwrap();
    assert!(log.contains("the store cannot be opened: ") && log.contains("choose another gateway.data_dir"), "{log}");
    first.stop();
}

#[test]
fn check_tells_the_file_and_line_of_a_wrong_rule() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.toml");
    let rules =
        "[[alert]]\nalert = \"A\"\nexpr = \"t => 80\"\n[[alert]]\nalert = \"B\"\nexpr = \"t && u\"\nhysteresis = 5\n";
    fs::write(&file, rules).unwrap();
    let output = tidegate(&["check", "--config", file.to_str().unwrap()], dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("t.toml:3:8: alert \"A\": `=` compares nothing"), "{error}");
    assert!(error.contains("t.toml:7:14: alert \"B\": hysteresis needs an expression"), "{error}");
}
