//! A call's request: path, headers and body, from templates.
//!
//! Values of formulas are data: one segment of a path or a part of one, one value of a query, one line of a header. The request around
//! them stays as its author wrote it.

use ::http::header::{self, HeaderName, HeaderValue};
use ::http::{Method, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use egress::EgressRequest;
use workflow::Json;
use workflow::formula::{TemplatePart, ValueTemplate, VariableScope};
use workflow::provider::{
    HttpAuth, HttpMethod as WrittenMethod, HttpRequestTemplate, SecretName, TextOrSecret,
};
use zeroize::Zeroizing;

use super::{BODY_BYTES_MAX, HttpProvider, RequestBuildError, TRACEPARENT, is_reserved};
use crate::providers::ProviderCall;

/// Builder of the requests of one call.
pub(super) struct HttpRequestRenderer<'a> {
    pub(super) provider: &'a HttpProvider,
    pub(super) call: &'a ProviderCall,
}

impl HttpRequestRenderer<'_> {
    /// Makes a request, without the key of the call.
    pub(super) fn render(&self, template: &HttpRequestTemplate) -> Result<EgressRequest, RequestBuildError> {
        let command = Json::text(self.call.command);
        let token = self.call.callback_token.as_ref().map_or(Json::Null, Json::text);
        let scope = VariableScope::new()
            .with("input", &self.call.input)
            .with("command_id", &command)
            .with("callback_token", &token);
        let path = path(&template.path, &scope)?;
        let base = self.provider.base.to_string();
        let uri: Result<Uri, _> = format!("{}{path}", base.trim_end_matches('/')).parse();
        let uri =
            uri.map_err(|error| RequestBuildError::Request(format!("the path makes no URL: {error}")))?;
        let mut request = EgressRequest::new(method(template.method), uri);
        self.provider_headers(&mut request)?;
        for (name, template) in &template.headers {
            let (name, value) = effect_header(name, template, &scope)?;
            request.headers.insert(name, value);
        }
        // An invalid trace context comes from elsewhere and is no reason not to call.
        if let Some(Ok(trace)) = self.call.traceparent.as_ref().map(|trace| HeaderValue::from_str(trace)) {
            request.headers.insert(TRACEPARENT, trace);
        }
        if let Some(body) = &template.body {
            let body = body.value(&scope).map_err(RequestBuildError::Formula)?.to_string();
            if body.len() > BODY_BYTES_MAX {
                let why = format!("the body has {} bytes, at most {BODY_BYTES_MAX} are sent", body.len());
                return Err(RequestBuildError::Request(why));
            }
            request.body = body.into();
            request
                .headers
                .entry(header::CONTENT_TYPE)
                .or_insert(HeaderValue::from_static("application/json"));
        }
        Ok(request)
    }

    fn provider_headers(&self, request: &mut EgressRequest) -> Result<(), RequestBuildError> {
        for (name, value) in &self.provider.headers {
            let value = match value {
                TextOrSecret::Text(text) => HeaderValue::from_str(text).map_err(|_| {
                    RequestBuildError::Request(format!(
                        "the provider's text for the header `{name}` is no line"
                    ))
                })?,
                TextOrSecret::Secret(secret) => self.secret_header(secret, |value| value.to_owned())?,
            };
            request.headers.insert(name.clone(), value);
        }
        let authorization = match &self.provider.auth {
            None => return Ok(()),
            Some(HttpAuth::Bearer(token)) => self.secret_header(token, |value| format!("Bearer {value}"))?,
            Some(HttpAuth::Basic { user, password }) => self.secret_header(password, |value| {
                let pair = Zeroizing::new(format!("{user}:{value}"));
                let encoded = Zeroizing::new(BASE64.encode(pair.as_bytes()));
                format!("Basic {}", *encoded)
            })?,
        };
        request.headers.insert(header::AUTHORIZATION, authorization);
        Ok(())
    }

    /// Makes a header of a secret: it is never shown, and its bytes are wiped with the last copy.
    fn secret_header(
        &self,
        name: &SecretName,
        make: impl FnOnce(&str) -> String,
    ) -> Result<HeaderValue, RequestBuildError> {
        let secret =
            self.provider.secrets.read(&self.call.tenant, name).map_err(RequestBuildError::Secret)?;
        let bytes = Bytes::from_owner(Zeroizing::new(make(secret.expose()).into_bytes()));
        let mut value = HeaderValue::from_maybe_shared(bytes).map_err(|_| {
            RequestBuildError::Request(format!("the value of `{name}` is no line of a header"))
        })?;
        value.set_sensitive(true);
        Ok(value)
    }
}

const fn method(method: WrittenMethod) -> Method {
    match method {
        WrittenMethod::Get => Method::GET,
        WrittenMethod::Put => Method::PUT,
        WrittenMethod::Post => Method::POST,
        WrittenMethod::Patch => Method::PATCH,
        WrittenMethod::Delete => Method::DELETE,
    }
}

/// Renders a header of an effect. An effect cannot set headers for authorization or the idempotency key.
fn effect_header(
    name: &str,
    template: &ValueTemplate,
    scope: &VariableScope<'_>,
) -> Result<(HeaderName, HeaderValue), RequestBuildError> {
    let header = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| RequestBuildError::Request(format!("`{name}` is no header")))?;
    if is_reserved(&header) {
        return Err(RequestBuildError::Request(format!("the header `{header}` is not for effects to set")));
    }
    let value = match template.value(scope).map_err(RequestBuildError::Formula)? {
        Json::Text(text) => text,
        Json::Int(number) => number.to_string(),
        Json::Bool(truth) => truth.to_string(),
        other => {
            let why = format!("the header `{header}` is a text, not {}", other.kind());
            return Err(RequestBuildError::Request(why));
        }
    };
    // Characters beyond ASCII pass as their bytes, control characters do not.
    let value = HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_| RequestBuildError::Request(format!("the header `{header}` has a control character")))?;
    Ok((header, value))
}

/// Characters of a URL that stand for themselves, wherever they are.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Renders a path with its query. The author's text stays as it is; values of formulas are encoded, so that they neither end their
/// segment nor begin a query, and may be neither `..` nor empty.
fn path(template: &ValueTemplate, scope: &VariableScope<'_>) -> Result<String, RequestBuildError> {
    let alone;
    let pieces = match template {
        ValueTemplate::Text(pieces) => pieces.as_slice(),
        ValueTemplate::Literal(Json::Text(text)) => {
            alone = [TemplatePart::Written(text.clone())];
            &alone
        }
        ValueTemplate::Formula(formula) => {
            alone = [TemplatePart::Formula(formula.clone())];
            &alone
        }
        _ => return Err(RequestBuildError::Request("a path is a text".to_owned())),
    };
    let mut path = HttpRequestPath::default();
    for piece in pieces {
        match piece {
            TemplatePart::Written(text) => path.write(text)?,
            formula @ TemplatePart::Formula(_) => {
                // Rendered as part of a text, so that the common rule converts the value to text.
                let text = ValueTemplate::Text(vec![formula.clone()])
                    .value(scope)
                    .map_err(RequestBuildError::Formula)?;
                path.fill(text.as_text().unwrap_or_default());
            }
        }
    }
    path.end()
}

/// A path that is being written.
#[derive(Default)]
struct HttpRequestPath {
    text: String,
    /// Where its last segment begins.
    segment: usize,
    is_filled: bool,
    is_query: bool,
}

impl HttpRequestPath {
    fn write(&mut self, text: &str) -> Result<(), RequestBuildError> {
        for character in text.chars() {
            if !self.is_query && matches!(character, '/' | '?' | '#') {
                self.end_segment()?;
                self.is_query = character != '/';
                self.segment = self.text.len() + 1;
            }
            self.text.push(character);
        }
        Ok(())
    }

    fn fill(&mut self, text: &str) {
        self.is_filled = true;
        for byte in text.bytes() {
            if is_plain(byte) {
                self.text.push(char::from(byte));
            } else {
                self.text.push_str(&format!("%{byte:02X}"));
            }
        }
    }

    /// Ends a segment. Servers treat `..` as the parent however it is encoded, and an empty segment as the whole collection.
    fn end_segment(&mut self) -> Result<(), RequestBuildError> {
        let segment =
            self.text.get(self.segment..).unwrap_or_default().to_ascii_lowercase().replace("%2e", ".");
        if std::mem::take(&mut self.is_filled) && matches!(segment.as_str(), "" | "." | "..") {
            let why = "a formula in the path gives nothing, or only dots: that would be another path";
            return Err(RequestBuildError::Request(why.to_owned()));
        }
        Ok(())
    }

    fn end(mut self) -> Result<String, RequestBuildError> {
        if !self.is_query {
            self.end_segment()?;
        }
        if !self.text.starts_with('/') {
            return Err(RequestBuildError::Request("a path begins with `/`".to_owned()));
        }
        Ok(self.text)
    }
}

#[cfg(test)]
mod tests {
    use workflow::formula::Variable;

    use super::*;

    fn rendered(template: &str, id: &str) -> Result<String, String> {
        let input = Json::object([("id", Json::text(id))]);
        let template = ValueTemplate::read_text(template, &[Variable::open("input")]).expect("a template");
        path(&template, &VariableScope::new().with("input", &input)).map_err(|unmade| match unmade {
            RequestBuildError::Request(why) => why,
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn formula_values_stay_one_path_segment_or_one_query_value() {
        for (id, segment) in [
            ("o-1", "o-1"),
            ("a/b", "a%2Fb"),
            ("../admin", "..%2Fadmin"),
            ("..%2fadmin", "..%252fadmin"),
            ("a?b=c&d#e", "a%3Fb%3Dc%26d%23e"),
            ("a\r\nHost: x", "a%0D%0AHost%3A%20x"),
            ("\\..\\", "%5C..%5C"),
            ("@evil.test:80", "%40evil.test%3A80"),
            ("ü\0", "%C3%BC%00"),
            ("...", "..."),
        ] {
            assert_eq!(rendered("/v1/${{ input.id }}", id), Ok(format!("/v1/{segment}")), "{id:?}");
            assert_eq!(
                rendered("/v1/things?key=${{ input.id }}&x=1", id),
                Ok(format!("/v1/things?key={segment}&x=1"))
            );
        }
        assert_eq!(
            rendered("/v1/./things//?a=/../", "x").as_deref(),
            Ok("/v1/./things//?a=/../"),
            "as written"
        );
        assert_eq!(rendered("/v1/order-${{ input.id }}/x", "..").as_deref(), Ok("/v1/order-../x"));
        assert_eq!(rendered("/v1/things?key=${{ input.id }}", "").as_deref(), Ok("/v1/things?key="));
    }

    #[test]
    fn what_would_be_another_path_is_refused() {
        for (template, id) in [
            ("/v1/${{ input.id }}", ""),
            ("/v1/${{ input.id }}", "."),
            ("/v1/${{ input.id }}/x", ".."),
            ("/v1/.${{ input.id }}?x", "."),
            ("/v1/%2E${{ input.id }}", "."),
            ("/v1/${{ input.id }}${{ input.id }}", "."),
            ("/v1/${{ input.id }}/", ""),
        ] {
            let why = rendered(template, id).expect_err(template);
            assert!(why.contains("another path"), "{template}: {why}");
        }
        assert_eq!(rendered("${{ input.id }}", "/x"), Err("a path begins with `/`".to_owned()));
    }
}
