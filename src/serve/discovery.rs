//! What is served, told in the two forms that clients ask for: the older documents and the aggregated one.

use axum::Json;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    APIGroup, APIGroupList, APIResource, APIResourceList, APIVersions, GroupVersionForDiscovery, ObjectMeta,
};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::core::discovery::v2::{
    APIGroupDiscovery, APIGroupDiscoveryList, APIResourceDiscovery, APIVersionDiscovery, GroupVersionKind,
};
use serde::Serialize;

use super::accept::aggregated_discovery;
use super::object::{CATEGORIES, GROUP, GROUP_VERSION, Kind, VERBS, VERSION};

/// The media type of the aggregated document, word for word as clients compare it.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The release of Kubernetes whose API conventions are followed: clients compare it with their own.
const FOLLOWS_MINOR: &str = "37";

/// `/api`: the core group, which is empty here; asked for by every client.
pub(super) async fn core(headers: HeaderMap) -> Response {
    if takes_aggregated(&headers) {
        return aggregated("", "v1", Vec::new());
    }
    Json(APIVersions { versions: vec!["v1".to_owned()], ..APIVersions::default() }).into_response()
}

/// `/api/v1`: no resources.
pub(super) async fn core_resources() -> Response {
    Json(APIResourceList { group_version: "v1".to_owned(), resources: Vec::new() }).into_response()
}

/// `/apis`: the one group.
pub(super) async fn groups(headers: HeaderMap) -> Response {
    if takes_aggregated(&headers) {
        return aggregated(GROUP, VERSION, Kind::ALL.map(aggregated_resource).into());
    }
    Json(APIGroupList { groups: vec![api_group()] }).into_response()
}

/// `/apis/tidegate.dev`.
pub(super) async fn group() -> Response {
    Json(api_group()).into_response()
}

/// `/apis/tidegate.dev/v1alpha1`.
pub(super) async fn resources() -> Response {
    let resources = Kind::ALL.map(resource).into();
    Json(APIResourceList { group_version: GROUP_VERSION.to_owned(), resources }).into_response()
}

/// `/version`.
pub(super) async fn version() -> Response {
    let info = Info {
        major: "1".to_owned(),
        minor: FOLLOWS_MINOR.to_owned(),
        git_version: format!("v1.{FOLLOWS_MINOR}.0+tidegate.{}", env!("CARGO_PKG_VERSION")),
        git_tree_state: "clean".to_owned(),
        compiler: "rustc".to_owned(),
        platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
        ..Info::default()
    };
    Json(info).into_response()
}

fn takes_aggregated(headers: &HeaderMap) -> bool {
    aggregated_discovery(headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()))
}

fn api_group() -> APIGroup {
    let version = GroupVersionForDiscovery { group_version: GROUP_VERSION.to_owned(), version: VERSION.to_owned() };
    APIGroup {
        name: GROUP.to_owned(),
        versions: vec![version.clone()],
        preferred_version: Some(version),
        server_address_by_client_cidrs: None,
    }
}

fn resource(kind: Kind) -> APIResource {
    APIResource {
        name: kind.plural().to_owned(),
        singular_name: kind.singular().to_owned(),
        namespaced: true,
        kind: kind.name().to_owned(),
        verbs: VERBS.map(str::to_owned).into(),
        short_names: Some(vec![kind.short().to_owned()]),
        categories: Some(CATEGORIES.map(str::to_owned).into()),
        ..APIResource::default()
    }
}

fn aggregated_resource(kind: Kind) -> APIResourceDiscovery {
    APIResourceDiscovery {
        resource: Some(kind.plural().to_owned()),
        response_kind: Some(GroupVersionKind {
            group: Some(GROUP.to_owned()),
            version: Some(VERSION.to_owned()),
            kind: Some(kind.name().to_owned()),
        }),
        scope: Some("Namespaced".to_owned()),
        singular_resource: Some(kind.singular().to_owned()),
        verbs: VERBS.map(str::to_owned).into(),
        short_names: vec![kind.short().to_owned()],
        categories: CATEGORIES.map(str::to_owned).into(),
        subresources: Vec::new(),
    }
}

fn aggregated(group: &str, version: &str, resources: Vec<APIResourceDiscovery>) -> Response {
    /// The list with the words that say what it is.
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Document {
        kind: &'static str,
        api_version: &'static str,
        #[serde(flatten)]
        list: APIGroupDiscoveryList,
    }
    let version =
        APIVersionDiscovery { version: Some(version.to_owned()), resources, freshness: Some("Current".to_owned()) };
    let group = APIGroupDiscovery {
        metadata: Some(ObjectMeta { name: Some(group.to_owned()), ..ObjectMeta::default() }),
        versions: vec![version],
    };
    let document = Document {
        kind: "APIGroupDiscoveryList",
        api_version: "apidiscovery.k8s.io/v2",
        list: APIGroupDiscoveryList { metadata: None, items: vec![group] },
    };
    ([(header::CONTENT_TYPE, AGGREGATED)], Json(document)).into_response()
}
