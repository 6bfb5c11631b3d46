//! Layers: files, then the environment, over the defaults.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use config::builder::DefaultState;
use config::{ConfigBuilder, Environment, File, FileFormat};

use super::Config;
use super::check::{faults, is_name};
use super::document::{Document, Origins};
use super::error::{ConfigError, ConfigErrors, Place, nearest};
use super::keys::{Key, Kind, ROOT};

/// The main file where none is named.
const FILE: &str = "/etc/tidegate/tidegate.toml";
/// Beginning of the variables.
const PREFIX: &str = "TIDEGATE__";
/// Largest file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most files in `conf.d`.
const FILES_MAX: usize = 256;
/// The keys that are arrays of tables, which are appended over files.
const ARRAYS: [&str; 3] = ["source", "alert", "sink"];

/// Which files are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The main file; `conf.d/*.toml` beside it are read after it, in the order of their names.
    pub file: PathBuf,
    /// True if it is an error that the main file is not there.
    pub required: bool,
}

impl Paths {
    /// The main file as a user named it; it must be there.
    pub fn named(file: impl Into<PathBuf>) -> Self {
        Self { file: file.into(), required: true }
    }
}

impl Default for Paths {
    /// `/etc/tidegate/tidegate.toml`, which may be missing: the defaults are a whole configuration.
    fn default() -> Self {
        Self { file: FILE.into(), required: false }
    }
}

/// A configuration and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The configuration; `gateway.name` is filled in.
    pub config: Config,
    /// The files that were read, in their order.
    pub files: Vec<PathBuf>,
    /// The environment variables that were used.
    pub variables: Vec<String>,
    origins: Origins,
}

impl Loaded {
    /// Where a value comes from, by its path, as in `broker.listen` or `alert[0].expr`; else the table around it.
    pub fn place(&self, path: &str) -> Place {
        self.origins.find(path)
    }
}

/// Reads all layers and checks them: the files of `paths`, each by itself; then `env`, of which the variables
/// `TIDEGATE__SECTION__KEY` count; then what the values must be to each other.
///
/// `host` is the host name, for a gateway without a name of its own.
pub fn load(
    paths: &Paths,
    env: impl IntoIterator<Item = (String, String)>,
    host: &str,
) -> Result<Loaded, ConfigErrors> {
    let mut origins = Origins::default();
    let mut errors = Vec::new();
    let documents = read_all(paths, &mut errors);
    for document in &documents {
        errors.extend(document.inspect(&mut origins));
    }
    let variables: BTreeMap<String, String> = env.into_iter().filter(|(name, _)| name.starts_with(PREFIX)).collect();
    for (name, value) in &variables {
        match check_variable(name, value) {
            Ok(path) => origins.put(path, Place::Variable(name.clone())),
            Err(error) => errors.push(error),
        }
    }
    ConfigErrors::check(errors)?;

    let mut config = merge(&documents, &variables).map_err(|source| ConfigError::Merge { source: source.into() })?;
    if config.gateway.name.is_empty() {
        config.gateway.name = host_name(host)?;
    }
    ConfigErrors::check(faults(&config).into_iter().map(|fault| fault.at(|key| origins.find(key))).collect())?;
    Ok(Loaded {
        config,
        files: documents.into_iter().map(|document| document.path).collect(),
        variables: variables.into_keys().collect(),
        origins,
    })
}

fn host_name(host: &str) -> Result<String, ConfigError> {
    let host = host.trim();
    if is_name(host, 63) {
        return Ok(host.to_owned());
    }
    let message = format!("is empty, and the host name {host:?} cannot stand for it; set gateway.name");
    Err(ConfigError::Value { place: Place::BuiltIn, key: "gateway.name".into(), message })
}

/// Reads the main file and those of `conf.d`; what cannot be read is an error, and the others are still read.
fn read_all(paths: &Paths, errors: &mut Vec<ConfigError>) -> Vec<Document> {
    let mut documents = Vec::new();
    let mut take = |path: &Path, required: bool| match read(path) {
        Ok(text) => documents.push(Document { path: path.to_owned(), text }),
        Err(error) if !required && error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => errors.push(ConfigError::Read { path: path.to_owned(), source }),
    };
    take(&paths.file, paths.required);
    let folder = paths.file.parent().unwrap_or(Path::new("")).join("conf.d");
    match list(&folder) {
        Ok(files) => files.iter().for_each(|file| take(file, true)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => errors.push(ConfigError::Read { path: folder, source }),
    }
    documents
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(std::io::Error::other("it has more than 1 MiB; split it into files in conf.d"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let line =
            error.as_bytes().iter().take(error.utf8_error().valid_up_to()).filter(|byte| **byte == b'\n').count() + 1;
        std::io::Error::other(format!("line {line} is not UTF-8; save the file as UTF-8"))
    })?;
    // Editors of other systems put a mark of the byte order in front.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// The files `*.toml` of a folder in the order of their names, without hidden ones.
fn list(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if hidden || path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        if files.len() == FILES_MAX {
            return Err(std::io::Error::other(format!("it holds more than {FILES_MAX} files; join some")));
        }
        files.push(path);
    }
    files.sort();
    Ok(files)
}

/// Checks a variable; the path of its key.
fn check_variable(name: &str, value: &str) -> Result<String, ConfigError> {
    let unknown = |mend: String| ConfigError::UnknownVariable { name: name.to_owned(), mend };
    let lower = name.strip_prefix(PREFIX).unwrap_or_default();
    if let Some(array) = ARRAYS.iter().find(|array| lower.split("__").next() == Some(&array.to_ascii_uppercase())) {
        return Err(unknown(format!("[[{array}]] cannot be set by the environment, write it into a file in conf.d")));
    }
    let Some((section, key)) = variables().find(|(section, key)| variable(section, key) == name) else {
        let names: Vec<String> = variables().map(|(section, key)| variable(section, key)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        return Err(unknown(match nearest(name, &names) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("write {PREFIX}SECTION__KEY, for example {PREFIX}BROKER__LISTEN, or remove it"),
        }));
    };
    let path = format!("{}.{}", section.name, key.name);
    match key.kind.check_text(value) {
        Ok(()) => Ok(path),
        Err(message) => Err(ConfigError::Value { place: Place::Variable(name.to_owned()), key: path, message }),
    }
}

/// The keys that a variable can set, with their sections.
fn variables() -> impl Iterator<Item = (&'static Key, &'static Key)> {
    ROOT.iter()
        .filter(|section| matches!(section.kind, Kind::Table(_)))
        .flat_map(|section| section.kind.keys().unwrap_or_default().iter().map(move |key| (section, key)))
}

fn variable(section: &Key, key: &Key) -> String {
    format!("{PREFIX}{}__{}", section.name, key.name).to_ascii_uppercase()
}

/// Lays the layers over each other. Tables are merged key by key, arrays of tables are appended.
fn merge(documents: &[Document], variables: &BTreeMap<String, String>) -> Result<Config, config::ConfigError> {
    let mut builder: ConfigBuilder<DefaultState> = config::Config::builder();
    let mut arrays: BTreeMap<&str, Vec<config::Value>> = BTreeMap::new();
    for document in documents {
        let layer = File::from_str(&document.text, FileFormat::Toml);
        let alone = config::Config::builder().add_source(layer.clone()).build()?;
        for array in ARRAYS {
            match alone.get_array(array) {
                Ok(tables) => arrays.entry(array).or_default().extend(tables),
                Err(config::ConfigError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        builder = builder.add_source(layer);
    }
    let variables = variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let environment = Environment::with_prefix("TIDEGATE").prefix_separator("__").separator("__");
    builder = builder.add_source(environment.source(Some(variables)));
    for (array, tables) in arrays {
        builder = builder.set_override(array, tables)?;
    }
    builder.build()?.try_deserialize()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn every_scalar_key_has_a_variable_and_no_table_has() {
        let names: Vec<String> = variables().map(|(section, key)| variable(section, key)).collect();
        assert!(names.contains(&"TIDEGATE__BROKER__LISTEN".to_owned()));
        assert!(names.iter().all(|name| check_variable(name, "127.0.0.1:1").is_ok() || !name.ends_with("LISTEN")));
        assert!(variables().all(|(_, key)| key.kind.keys().is_none()));
    }

    #[test]
    fn an_unknown_variable_is_told_the_nearest_name() {
        for (name, wanted) in [
            ("TIDEGATE__BROKER__LISTEM", "did you mean TIDEGATE__BROKER__LISTEN?"),
            ("TIDEGATE__BROKR__LISTEN", "did you mean TIDEGATE__BROKER__LISTEN?"),
            ("TIDEGATE__SOURCE__TOPIC", "[[source]] cannot be set by the environment"),
            ("TIDEGATE__SINK", "[[sink]] cannot be set by the environment"),
            ("TIDEGATE__X", "write TIDEGATE__SECTION__KEY"),
        ] {
            let error = check_variable(name, "x").unwrap_err().to_string();
            assert!(error.starts_with(&format!("unknown environment variable {name}; ")), "{error}");
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_bad_value_names_the_variable() {
        let error = check_variable("TIDEGATE__BROKER__INFLIGHT_MAX", "many").unwrap_err().to_string();
        assert_eq!(
            error,
            "environment variable TIDEGATE__BROKER__INFLIGHT_MAX: broker.inflight_max must be a whole number, not \"many\"; write for example 100"
        );
    }

    #[test]
    fn a_host_name_that_is_no_name_asks_for_one() {
        assert_eq!(host_name("edge-1\n").unwrap(), "edge-1");
        for host in ["", "(none)", "a b", &"x".repeat(64)] {
            assert!(host_name(host).unwrap_err().to_string().ends_with("set gateway.name"), "{host}");
        }
    }
}
