//! What the stock kubectl makes of the served API. Runs where `TIDEGATE_KUBECTL` names one.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::House;

struct Kubectl {
    binary: PathBuf,
    server: String,
    home: tempfile::TempDir,
}

impl Kubectl {
    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(["--server", &self.server]).args(arguments.split(' '));
        command.env("HOME", self.home.path()).env("KUBECONFIG", self.home.path().join("none"));
        command
    }

    /// Runs it and gives what it says on both streams.
    fn run(&self, arguments: &str) -> (bool, String) {
        let output = self.command(arguments).stdin(Stdio::null()).output().expect("kubectl runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn good(&self, arguments: &str) -> String {
        let (good, text) = self.run(arguments);
        assert!(good, "kubectl {arguments}: {text}");
        text
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_reads_lists_watches_and_waits() {
    let Some(binary) = std::env::var_os("TIDEGATE_KUBECTL") else { return };
    let house = House::start(10);
    house.view.put("press07", r#"{"hall":"north"}"#, 21.5);
    house.view.put("hall/door 4", "{}", 1.0);
    house.view.alert("hot", "press07", "firing");
    let server = format!("http://{}", house.address);
    let kubectl = Kubectl { binary: binary.into(), server, home: tempfile::tempdir().expect("a folder") };

    let table = kubectl.good("get devicestates");
    assert!(table.contains("LAST SEEN") && table.contains("temperature=21.5"), "{table}");
    assert!(kubectl.good("get dst -l hall=north -o name").trim() == "devicestate.tidegate.dev/press07");
    assert!(kubectl.good("get alerts -A").contains("firing"));
    assert!(kubectl.good("get dst press07 -o yaml").contains("value: 21.5"));
    assert!(kubectl.good("get dst --chunk-size=1 -o name").lines().count() == 2);
    assert!(kubectl.good("api-resources").contains("tidegate.dev/v1alpha1"));
    assert!(kubectl.good("describe dst press07").contains("press07"));
    assert!(kubectl.good("version").contains("tidegate"));
    kubectl.good("wait dst/press07 --for=jsonpath={.status.online}=true --timeout=5s");
    let (good, text) = kubectl.run("delete dst press07 --wait=false");
    assert!(!good && text.contains("MethodNotAllowed"), "{text}");
    let (good, text) = kubectl.run("get dst nobody");
    assert!(!good && text.contains("NotFound"), "{text}");

    let mut watch =
        kubectl.command("get dst press07 -w --no-headers").stdout(Stdio::piped()).spawn().expect("kubectl runs");
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    assert!(lines.next().expect("the first row").expect("text").contains("21.5"));
    // kubectl takes the watch's first ADDED for what it has printed already, so one change may fall to that.
    let mut changes = tokio::task::JoinSet::new();
    let view = std::sync::Arc::clone(&house.view);
    changes.spawn(async move {
        let mut tick = tokio::time::interval(std::time::Duration::from_millis(50));
        loop {
            tick.tick().await;
            view.put("press07", "{}", 99.5);
        }
    });
    assert!(lines.next().expect("the change").expect("text").contains("99.5"));
    changes.shutdown().await;
    house.shutdown.cancel();
    assert!(watch.wait().expect("it ends").success(), "a clean end is no error");
}
