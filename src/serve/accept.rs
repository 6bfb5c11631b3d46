//! Content negotiation: which form of an answer a client takes, by its `Accept` header.

use super::failure::Failure;

/// Bytes of an `Accept` header that are looked at; kubectl's longest is about 300.
const ACCEPT_BYTES_MAX: usize = 4096;

/// The form of a served object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The object as it is.
    Object,
    /// A row of a `Table`, made for people; of this API version.
    Table(&'static str),
    /// Its metadata alone.
    Metadata,
}

/// The first form of an object that the client takes, in its own order of preference.
pub(super) fn object_form(accept: Option<&str>) -> Result<Form, Failure> {
    ranges(accept).find_map(|range| range.object_form()).ok_or_else(Failure::not_acceptable)
}

/// True if the client takes aggregated discovery; false if it takes plain JSON before that or nothing else.
pub(super) fn aggregated_discovery(accept: Option<&str>) -> bool {
    let first = ranges(accept).find_map(|range| {
        let aggregated = range.parameter("g") == Some("apidiscovery.k8s.io")
            && range.parameter("v") == Some("v2")
            && range.parameter("as") == Some("APIGroupDiscoveryList");
        match (aggregated, range.parameter("as")) {
            (true, _) => Some(true),
            (false, None) => Some(false),
            (false, Some(_)) => None,
        }
    });
    first.unwrap_or(false)
}

/// A media range of JSON with its parameters.
struct Range<'a>(&'a str);

impl<'a> Range<'a> {
    fn parameter(&self, name: &str) -> Option<&'a str> {
        let pairs = self.0.split(';').skip(1).filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(key, value)| (key.trim(), value.trim().trim_matches('"')))
            .find(|(key, _)| *key == name)
            .map(|p| p.1)
    }

    fn is_json(&self) -> bool {
        let media = self.0.split(';').next().unwrap_or_default().trim();
        let json = ["application/json", "application/*", "*/*"].iter().any(|known| media.eq_ignore_ascii_case(known));
        json && !matches!(self.parameter("q"), Some("0" | "0.0" | "0.00" | "0.000"))
    }

    fn object_form(&self) -> Option<Form> {
        match (self.parameter("as"), self.parameter("g"), self.parameter("v")) {
            (None, _, _) => Some(Form::Object),
            (Some("Table"), Some("meta.k8s.io"), Some("v1")) => Some(Form::Table("meta.k8s.io/v1")),
            (Some("Table"), Some("meta.k8s.io"), Some("v1beta1")) => Some(Form::Table("meta.k8s.io/v1beta1")),
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some("meta.k8s.io"), Some("v1")) => {
                Some(Form::Metadata)
            }
            _ => None,
        }
    }
}

/// The ranges of JSON, in order. No header means anything.
fn ranges(accept: Option<&str>) -> impl Iterator<Item = Range<'_>> {
    let text = accept.map(str::trim).filter(|text| !text.is_empty() && text.len() <= ACCEPT_BYTES_MAX).unwrap_or("*/*");
    text.split(',').map(Range).filter(Range::is_json)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn kubectl_gets_a_table_and_an_informer_an_object() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
                       application/json";
        assert_eq!(object_form(Some(kubectl)).unwrap(), Form::Table("meta.k8s.io/v1"));
        assert_eq!(object_form(Some("application/json")).unwrap(), Form::Object);
        assert_eq!(object_form(Some("application/vnd.kubernetes.protobuf, */*;q=0.1")).unwrap(), Form::Object);
        assert_eq!(object_form(None).unwrap(), Form::Object);
        let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(object_form(Some(metadata)).unwrap(), Form::Metadata);
    }

    #[test]
    fn what_is_not_json_is_not_acceptable() {
        for accept in
            ["application/vnd.kubernetes.protobuf", "text/html", "application/json;q=0", "application/json;as=X"]
        {
            assert_eq!(object_form(Some(accept)), Err(Failure::not_acceptable()), "{accept}");
        }
    }

    #[test]
    fn aggregated_discovery_is_told_only_to_those_who_ask_for_version_2() {
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
                       application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                       application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert!(aggregated_discovery(Some(kubectl)));
        let old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert!(!aggregated_discovery(Some(old)));
        assert!(!aggregated_discovery(Some("*/*")));
        assert!(!aggregated_discovery(None));
    }
}
