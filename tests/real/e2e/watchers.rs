//! Watchers over the whole time: a raw HTTP watch that resumes from its resourceVersion and never lists again, and
//! `kubectl get -w`.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::http;

/// Objects by name: resourceVersion and status.
pub(crate) type Objects = BTreeMap<String, (u64, Value)>;

/// The objects of a list.
pub(crate) fn objects(list: &Value) -> Objects {
    list["items"].as_array().expect("a list has items").iter().map(object).collect()
}

/// Name, resourceVersion and status of an object.
pub(crate) fn object(object: &Value) -> (String, (u64, Value)) {
    let name = object["metadata"]["name"].as_str().expect("an object has a name").to_owned();
    (name, (version(object), plain(&object["status"])))
}

/// With every number as a float: kubectl writes 74.0 as 74.
pub(crate) fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or_else(|| value.clone(), Value::from),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
        other => other.clone(),
    }
}

fn version(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str().expect("it has a resourceVersion");
    text.parse().expect("the gateway's resourceVersions are numbers")
}

/// What a watch told so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// All objects, as the events left them.
    pub(crate) objects: Objects,
    /// The resourceVersion to go on from.
    pub(crate) version: u64,
    /// Events.
    pub(crate) events: usize,
    /// Watches that were opened.
    pub(crate) watches: usize,
    /// What must not happen.
    pub(crate) problems: Vec<String>,
}

/// A raw watch in a thread of its own.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    address: SocketAddr,
    path: String,
    told: Mutex<Told>,
    stop: AtomicBool,
    socket: Mutex<Option<TcpStream>>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl Watch {
    /// Lists once, then watches from there, over every broken connection.
    pub(crate) fn start(address: SocketAddr, plural: &str) -> Self {
        let path = format!("/apis/tidegate.dev/v1alpha1/namespaces/default/{plural}");
        let list = http::get(address, &path).expect("a list is answered");
        let list: Value = serde_json::from_str(&list.body).expect("a list is JSON");
        let told = Told { objects: objects(&list), version: version(&list), ..Told::default() };
        let (stop, socket) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { address, path, told: Mutex::new(told), stop, socket });
        let own = shared.clone();
        let thread = std::thread::spawn(move || own.follow());
        Self { shared, thread: Some(thread) }
    }

    /// What it told so far.
    pub(crate) fn told(&self) -> Told {
        self.shared.told.lock().expect("nobody panics while holding it").clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Ok(Some(socket)) = self.shared.socket.lock().as_deref() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn follow(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            if self.watch().is_err() {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// One watch, until its connection ends.
    fn watch(&self) -> io::Result<()> {
        let stream = TcpStream::connect(self.address)?;
        *self.socket.lock().expect("nobody panics while holding it") = Some(stream.try_clone()?);
        let from = self.told.lock().expect("nobody panics while holding it").version;
        let path = format!("{}?watch=true&allowWatchBookmarks=true&resourceVersion={from}", self.path);
        let (status, body) = http::open(stream, self.address, &path)?;
        if status == 503 {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let mut told = self.told.lock().expect("nobody panics while holding it");
        told.watches += 1;
        if status != 200 {
            told.problems.push(format!("a watch from {from} is answered {status}"));
        }
        drop(told);
        for line in BufReader::new(body).lines() {
            let event = serde_json::from_str::<Event>(&line?)?;
            self.told.lock().expect("nobody panics while holding it").take(&event, from);
        }
        Ok(())
    }
}

impl Told {
    fn take(&mut self, event: &Event, from: u64) {
        if event.kind == "ERROR" {
            let problem = format!("a watch from {from} got {}", event.object);
            if self.problems.len() < 20 {
                self.problems.push(problem);
            }
            return;
        }
        let version = version(&event.object);
        if version < self.version || (version == self.version && event.kind != "BOOKMARK") {
            self.problems.push(format!("{} with resourceVersion {version} after {}", event.kind, self.version));
        }
        self.version = version;
        if event.kind == "BOOKMARK" {
            return;
        }
        self.events += 1;
        let (name, now) = object(&event.object);
        let known =
            if event.kind == "DELETED" { self.objects.remove(&name) } else { self.objects.insert(name.clone(), now) };
        if (event.kind == "ADDED") == known.is_some() {
            self.problems.push(format!(
                "{} of {name}, which was {}known",
                event.kind,
                if known.is_some() { "" } else { "un" }
            ));
        }
    }
}

/// What `kubectl get -w -o json` left in its file: the newest of each object. A last object that is not whole yet is
/// left out.
pub(crate) fn kubectl_view(text: &str) -> Objects {
    let mut view = Objects::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>().map_while(Result::ok) {
        match value["items"].as_array() {
            Some(items) => view.extend(items.iter().map(object)),
            None => view.extend([object(&value)]),
        }
    }
    view
}
