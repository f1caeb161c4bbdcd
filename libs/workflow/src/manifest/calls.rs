//! Effects of providers: what each call is made of.

use yaml::{YamlEntry, YamlFields, did_you_mean};

use super::fields::ManifestReader;
use super::provider::EFFECT_KEYS;
use crate::formula::{ValueTemplate, Variable};
use crate::provider::{
    EffectAction, FlowCall, HttpCall, HttpMethod, HttpRequestTemplate, MailTemplate, OutcomeQuery,
    UnknownOutcomePolicy,
};

/// Keys of an effect by HTTP, beside those of every effect.
pub(super) const HTTP_CALL_KEYS: &[&str] = &["request", "success", "terminal", "result", "callback"];
/// Keys of a request.
pub(super) const REQUEST_KEYS: &[&str] = &["method", "path", "body", "headers"];
/// Keys of a query.
pub(super) const QUERY_KEYS: &[&str] = &["method", "path", "body", "headers", "absent"];
/// Keys of a mail, beside those of every effect.
pub(super) const MAIL_KEYS: &[&str] = &["from", "to", "subject", "text"];
/// Keys of a flow, beside those of every effect.
pub(super) const FLOW_CALL_KEYS: &[&str] = &["flow_file", "env"];

/// Returns the variables that a call's request may use.
fn call_variables() -> Vec<Variable> {
    vec![
        Variable::open("input"),
        Variable::with("command_id", Vec::<String>::new()),
        Variable::with("callback_token", Vec::<String>::new()),
    ]
}

/// Returns the variables that are known once there is an answer.
fn answer_variables() -> Vec<Variable> {
    vec![
        Variable::with("status", Vec::<String>::new()),
        Variable::open("body"),
        Variable::open("headers"),
        Variable::open("input"),
        Variable::with("command_id", Vec::<String>::new()),
    ]
}

type ParsedCall<'t> = (Option<EffectAction>, YamlFields<'t>);

impl ManifestReader {
    /// Reads an effect by HTTP.
    pub(super) fn http_call<'t>(&mut self, entry: &'t YamlEntry, what: &str) -> ParsedCall<'t> {
        let fields = self.fields(&entry.value, what, &[HTTP_CALL_KEYS, EFFECT_KEYS].concat());
        let request = match fields.get("request") {
            Some(entry) => self.request(entry),
            None => {
                self.missing(entry.place, what, "request", "{ method: POST, path: /v1/things }");
                None
            }
        };
        let known = answer_variables();
        let mut formula = |key: &str| fields.get(key).and_then(|entry| self.formula(entry, &known));
        let (success, terminal) = (formula("success"), formula("terminal"));
        let result = fields.get("result").map(|entry| self.template(&entry.value, &known));
        let is_callback =
            fields.get("callback").and_then(|entry| self.yaml.boolean(entry)).unwrap_or_default();
        let call = request.map(|request| HttpCall { request, success, terminal, result, is_callback });
        (call.map(|call| EffectAction::Http(Box::new(call))), fields)
    }

    fn request(&mut self, entry: &YamlEntry) -> Option<HttpRequestTemplate> {
        let fields = self.fields(&entry.value, "a request", REQUEST_KEYS);
        if !fields.contains_key("method") {
            self.missing(entry.place, "a request", "method", "POST");
            return None;
        }
        self.request_of(entry, &fields, "a request")
    }

    /// Reads the parts of a request among the keys of `entry`; without a method it is GET.
    fn request_of(
        &mut self,
        entry: &YamlEntry,
        fields: &YamlFields<'_>,
        what: &str,
    ) -> Option<HttpRequestTemplate> {
        let known = call_variables();
        let method = fields.get("method").map_or(Some(HttpMethod::Get), |entry| self.method(entry));
        let path = match fields.get("path") {
            Some(entry) => self.path(entry, &known),
            None => {
                self.missing(entry.place, what, "path", "\"/v1/things?key=${{ command_id }}\"");
                None
            }
        };
        let body = fields.get("body").map(|entry| self.template(&entry.value, &known));
        let headers = self.templates(fields.get("headers").copied(), "a mapping from names to texts", &known);
        Some(HttpRequestTemplate { method: method?, path: path?, body, headers })
    }

    fn method(&mut self, entry: &YamlEntry) -> Option<HttpMethod> {
        let text = self.yaml.text(entry)?;
        let method = HttpMethod::ALL.into_iter().find(|known| known.as_str() == text);
        if method.is_none() {
            let known = HttpMethod::ALL.map(HttpMethod::as_str);
            let hint = did_you_mean(text, &known);
            self.problem(entry.value.place, format!("there are {}, not `{text}`{hint}", known.join(", ")));
        }
        method
    }

    fn path(&mut self, entry: &YamlEntry, known: &[Variable]) -> Option<ValueTemplate> {
        if !entry.value.value.as_text().is_some_and(|text| text.starts_with('/')) {
            self.yaml.wrong_kind(entry, "a path behind the provider's `base_url`, beginning with /");
            return None;
        }
        self.text_with_formulas(entry, known)
    }

    /// Reads how an upstream is queried.
    pub(super) fn query(
        &mut self,
        entry: &YamlEntry,
        call: Option<&EffectAction>,
    ) -> Option<UnknownOutcomePolicy> {
        let outer = self.fields(&entry.value, "`unknown_outcome`", &["query"]);
        let query = outer.get("query")?;
        if !matches!(call, Some(EffectAction::Http(_)) | None) {
            self.problem(
                query.place,
                "only an upstream that speaks HTTP can be asked; write retry, fail or manual",
            );
            return None;
        }
        let fields = self.fields(&query.value, "`query`", QUERY_KEYS);
        let request = self.request_of(query, &fields, "`query`");
        let absent = match fields.get("absent") {
            Some(entry) => self.formula(entry, &answer_variables()),
            None => {
                self.missing(query.place, "`query`", "absent", "status == 404");
                None
            }
        };
        Some(UnknownOutcomePolicy::Query(Box::new(OutcomeQuery { request: request?, absent: absent? })))
    }

    /// Reads a mail.
    pub(super) fn mail<'t>(&mut self, entry: &'t YamlEntry, what: &str) -> ParsedCall<'t> {
        let fields = self.fields(&entry.value, what, &[MAIL_KEYS, EFFECT_KEYS].concat());
        let known = call_variables();
        let from = fields.get("from").and_then(|entry| self.text_with_formulas(entry, &known));
        let mut part = |key: &str, example: &str| match fields.get(key) {
            Some(entry) => Some(self.template(&entry.value, &known)),
            None => {
                self.missing(entry.place, what, key, example);
                None
            }
        };
        let to = part("to", "\"${{ input.to }}\"");
        let subject = part("subject", "Your order");
        let text = part("text", "It is on its way.");
        let mail = match (to, subject, text) {
            (Some(to), Some(subject), Some(text)) => Some(MailTemplate { from, to, subject, text }),
            _ => None,
        };
        (mail.map(|mail| EffectAction::Mail(Box::new(mail))), fields)
    }

    /// Reads a flow.
    pub(super) fn flow_call<'t>(&mut self, entry: &'t YamlEntry, what: &str) -> ParsedCall<'t> {
        let fields = self.fields(&entry.value, what, &[FLOW_CALL_KEYS, EFFECT_KEYS].concat());
        let file = match fields.get("flow_file") {
            Some(entry) => self.flow_file(entry),
            None => {
                self.missing(entry.place, what, "flow_file", "make-label.yaml");
                None
            }
        };
        let wanted = "a mapping from names to texts, such as { ORDER: \"${{ input.order_id }}\" }";
        let env = self.templates(fields.get("env").copied(), wanted, &call_variables());
        (file.map(|file| EffectAction::Flow(FlowCall { file, env })), fields)
    }

    /// Reads the name of a flow file, in the manifest's folder or below it.
    fn flow_file(&mut self, entry: &YamlEntry) -> Option<String> {
        let text = self.yaml.text(entry)?;
        let is_below =
            !text.is_empty() && !text.starts_with('/') && !text.split('/').any(|part| part == "..");
        if !is_below {
            self.yaml.wrong_kind(entry, "a file beside the manifest or below it");
        }
        Some(text.to_owned())
    }
}
