//! Errors as clients of Kubernetes expect them: a `Status` object with a reason and a code.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};

use super::object::{GROUP, Kind};
use crate::model::Seq;

/// A request that failed. As a response it carries the code of its `Status`, as a watch event the `Status` itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Failure(Box<Status>);

impl Failure {
    /// 400: the request cannot be read.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 403: the request comes under a foreign name.
    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    /// 404: there is no such path.
    pub(super) fn no_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    /// 404: there is no such object.
    pub(super) fn not_found(kind: Kind, name: &str) -> Self {
        let message = format!("{}.{GROUP} {name:?} not found", kind.plural());
        Self::new(404, "NotFound", message).with_details(|details| {
            details.name = Some(name.to_owned());
            details.group = Some(GROUP.to_owned());
            details.kind = Some(kind.plural().to_owned());
        })
    }

    /// 405: everything that is not a read.
    pub(super) fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "this API is read-only: it serves get, list and watch")
    }

    /// 406: no form of the answer that the client takes is served.
    pub(super) fn not_acceptable() -> Self {
        let message = "only application/json is served, also as Table or PartialObjectMetadata of meta.k8s.io/v1";
        Self::new(406, "NotAcceptable", message)
    }

    /// 410: the position or the page is gone; list again.
    pub(super) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 410 of a watch.
    pub(super) fn too_old(after: Seq, floor: Seq, head: Seq) -> Self {
        if after > head {
            return Self::expired(format!("resource version {after} is ahead of the newest ({head})"));
        }
        Self::expired(format!("too old resource version: {after} ({floor})"))
    }

    /// 414: the path or the query is too long.
    pub(super) fn too_long(max: usize) -> Self {
        Self::new(414, "BadRequest", format!("path and query are longer than {max} bytes"))
    }

    /// 422: the parameters are well formed but do not go together.
    pub(super) fn invalid(field: &str, message: &str) -> Self {
        let kind = "ListOptions.meta.k8s.io";
        Self::new(422, "Invalid", format!("{kind} \"\" is invalid: {field}: {message}")).with_details(|details| {
            details.group = Some("meta.k8s.io".to_owned());
            details.kind = Some("ListOptions".to_owned());
            details.causes = Some(vec![StatusCause {
                reason: Some("FieldValueForbidden".to_owned()),
                message: Some(message.to_owned()),
                field: Some(field.to_owned()),
            }]);
        })
    }

    /// 429: all watches are taken.
    pub(super) fn too_many(max: usize) -> Self {
        let message = format!("{max} watches are open, which is serve.watchers_max; close one or raise it");
        Self::new(429, "TooManyRequests", message).retry_after()
    }

    /// 503: not now.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message).retry_after()
    }

    /// 504: the position lies ahead of the head, and waiting did not help.
    pub(super) fn too_large(asked: Seq, head: Seq) -> Self {
        let message = format!("Too large resource version: {asked}, current: {head}");
        Self::new(504, "Timeout", message).retry_after().with_details(|details| {
            details.causes = Some(vec![StatusCause {
                reason: Some("ResourceVersionTooLarge".to_owned()),
                message: Some("Too large resource version".to_owned()),
                field: None,
            }]);
        })
    }

    /// The object of an `ERROR` event.
    pub(super) fn status(&self) -> &Status {
        &self.0
    }

    fn new(code: i32, reason: &str, message: impl Into<String>) -> Self {
        Self(Box::new(Status {
            code: Some(code),
            message: Some(message.into()),
            reason: Some(reason.to_owned()),
            status: Some("Failure".to_owned()),
            ..Status::default()
        }))
    }

    fn retry_after(self) -> Self {
        self.with_details(|details| details.retry_after_seconds = Some(1))
    }

    fn with_details(mut self, fill: impl FnOnce(&mut StatusDetails)) -> Self {
        fill(self.0.details.get_or_insert_default());
        self
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = self.0.code.and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
        let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry = self.0.details.as_ref().and_then(|details| details.retry_after_seconds);
        let mut response = (code, axum::Json(&*self.0)).into_response();
        if let Some(seconds) = retry {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    fn json(failure: &Failure) -> serde_json::Value {
        serde_json::to_value(failure.status()).unwrap()
    }

    #[test]
    fn a_failure_is_a_status_that_kubectl_can_read() {
        let status = json(&Failure::not_found(Kind::Alert, "hot.press07"));
        assert_eq!((&status["kind"], &status["apiVersion"]), (&"Status".into(), &"v1".into()));
        assert_eq!((&status["status"], &status["code"]), (&"Failure".into(), &404.into()));
        assert_eq!(status["message"], "alerts.tidegate.dev \"hot.press07\" not found");
        assert_eq!(status["details"]["name"], "hot.press07");
    }

    #[test]
    fn what_may_be_tried_again_says_when() {
        for failure in [Failure::too_many(1), Failure::unavailable("x"), Failure::too_large(Seq(9), Seq(3))] {
            assert_eq!(json(&failure)["details"]["retryAfterSeconds"], 1);
            assert_eq!(failure.into_response().headers()["retry-after"], "1");
        }
        assert!(Failure::expired("x").into_response().headers().get("retry-after").is_none());
    }

    #[test]
    fn a_position_ahead_of_the_head_is_named_as_such() {
        assert_eq!(
            json(&Failure::too_large(Seq(9), Seq(3)))["details"]["causes"][0]["reason"],
            "ResourceVersionTooLarge"
        );
        assert_eq!(json(&Failure::too_old(Seq(1), Seq(5), Seq(7)))["message"], "too old resource version: 1 (5)");
        let ahead = json(&Failure::too_old(Seq(9), Seq(5), Seq(7)));
        assert_eq!((&ahead["code"], &ahead["reason"]), (&410.into(), &"Expired".into()));
        assert_eq!(ahead["message"], "resource version 9 is ahead of the newest (7)");
    }
}
