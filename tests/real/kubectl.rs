//! The stock kubectl against a gateway.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::parts::{Printed, Process, folder, required, run};

/// kubectl with a home of its own, so that nobody's kubeconfig or cache is touched.
pub(crate) struct Kubectl {
    program: String,
    home: TempDir,
    server: SocketAddr,
}

impl Kubectl {
    /// kubectl for the gateway that serves at `server`.
    pub(crate) fn new(server: SocketAddr) -> Self {
        Self { program: required("TIDEGATE_KUBECTL"), home: folder("kubectl"), server }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--server").arg(format!("http://{}", self.server)).args(args);
        command.env("HOME", self.home.path()).env("KUBECONFIG", self.home.path().join("none"));
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Printed {
        run(&mut self.command(args), 30)
    }

    /// Runs it; it must succeed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let printed = self.run(args);
        assert_eq!(printed.code, Some(0), "kubectl {}: {}{}", args.join(" "), printed.out, printed.err);
        printed.out
    }

    /// Runs it; it must print JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(args);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("kubectl {}: {error}: {text}", args.join(" ")))
    }

    /// Starts it with its output in a file.
    pub(crate) fn follow(&self, args: &[&str], file: &Path) -> Process {
        let out = File::create(file).expect("the folder is writable");
        let errors = out.try_clone().expect("a file can be shared");
        Process::spawn(self.command(args).stdin(Stdio::null()).stdout(out).stderr(errors))
    }

    /// A file in its home.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }
}
