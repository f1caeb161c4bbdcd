//! The four orders: what is to come of each, and whether it did.

use std::collections::BTreeMap;

use proto::v1;
use serde::Serialize;

use super::aggregates::DemoOrderState;
use super::mail_server::CapturedMail;
use super::payments::PaymentCounts;
use crate::command::CliSession;
use crate::failure::CliError;

/// An order.
#[derive(Debug)]
pub(super) struct DemoOrder {
    /// Number of the order, which is the correlation of its saga.
    pub(super) id: String,
    /// Purpose of the order: what it demonstrates.
    pub(super) story: &'static str,
    /// Address that gets the receipt.
    pub(super) email: String,
    /// Price in cents.
    pub(super) amount_cents: u64,
    /// True when the customer pays.
    pub(super) is_paid: bool,
    /// True when the answer to the reservation is lost.
    pub(super) is_answer_lost: bool,
    ends: ExpectedEnding,
}

/// How an order is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedEnding {
    Shipped,
    Declined,
    Unpaid,
}

/// Observations of an order, from everything that took part in it.
pub(super) struct OrderObservations<'a> {
    /// Kinds of facts of its saga.
    pub(super) way: Vec<&'a str>,
    /// How it stands.
    pub(super) aggregate: Option<DemoOrderState>,
    /// Operations on the order's payment.
    pub(super) payment: PaymentCounts,
    /// Mails to its customer.
    pub(super) mails: Vec<CapturedMail>,
    /// Labels that flows gave, and the flow of each.
    pub(super) labels: &'a BTreeMap<String, u32>,
}

/// Outcome of an order.
#[derive(Debug, Serialize)]
pub(super) struct DemoOrderReport {
    order: String,
    status: &'static str,
    what: String,
    /// Deviations from the expected outcome.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// All orders.
pub(super) fn all() -> Vec<DemoOrder> {
    let order =
        |number: u32, name: &str, amount_cents: u64, story: &'static str, ends: ExpectedEnding| DemoOrder {
            id: number.to_string(),
            story,
            email: format!("{name}@customers.example"),
            amount_cents,
            is_paid: ends == ExpectedEnding::Shipped,
            is_answer_lost: false,
            ends,
        };
    let lost =
        order(1004, "dana", 2_950, "its payment's answer will be lost on the way", ExpectedEnding::Shipped);
    vec![
        order(1001, "ann", 4_990, "all goes well", ExpectedEnding::Shipped),
        order(1002, "bob", 250_000, "its payment will be declined", ExpectedEnding::Declined),
        order(1003, "cy", 1_500, "its customer will not pay in time", ExpectedEnding::Unpaid),
        DemoOrder { is_answer_lost: true, ..lost },
    ]
}

/// Labels that finished flows of sagas gave, and the number of each flow.
///
/// # Errors
/// When flows cannot be listed.
pub(super) async fn labels(session: &CliSession) -> Result<BTreeMap<String, u32>, CliError> {
    let request = v1::ListFlowsRequest {
        context_id: session.context()?,
        name_prefix: "saga-".to_owned(),
        ..v1::ListFlowsRequest::default()
    };
    let listed = session.clients.list_flows(request, u32::MAX).await?;
    let label = |flow: v1::Flow| flow.result.get("label.code").map(|code| (code.clone(), flow.id));
    Ok(listed.flows.into_iter().filter_map(label).collect())
}

impl DemoOrder {
    /// Returns the reference of the order's payment.
    pub(super) fn reference(&self) -> String {
        format!("order-{}", self.id)
    }

    /// Compares what was seen with what was to come.
    pub(super) fn outcome(&self, seen: &OrderObservations<'_>) -> DemoOrderReport {
        let mut check = OrderProblems::default();
        let (status, what) = match self.ends {
            ExpectedEnding::Shipped => ("shipped", self.shipped(seen, &mut check)),
            ExpectedEnding::Declined => ("cancelled", self.declined(seen, &mut check)),
            ExpectedEnding::Unpaid => ("cancelled", self.unpaid(seen, &mut check)),
        };
        let status = if check.0.is_empty() { status } else { "WRONG" };
        let problems: Vec<_> =
            check.0.into_iter().map(|problem| format!("order {}: {problem}", self.id)).collect();
        DemoOrderReport { order: self.id.clone(), status, what, problems }
    }

    fn shipped(&self, seen: &OrderObservations<'_>, check: &mut OrderProblems) -> String {
        check.equal("the way of its saga ends as", &seen.way.last().copied(), &Some("completed"));
        let lost = u32::from(self.is_answer_lost);
        let paid = PaymentCounts { reserved: 1, lost, found: lost, ..PaymentCounts::default() };
        check.equal("its payment is", &seen.payment, &paid);
        let label = match &seen.aggregate {
            Some(DemoOrderState::Shipped { label }) => label.as_str(),
            other => {
                check.wrong(format!("it is {other:?}, not shipped"));
                ""
            }
        };
        let flow = seen.labels.get(label);
        if flow.is_none() || !label.starts_with(&format!("LBL-{}-", self.id)) {
            check.wrong(format!("its label {label:?} is that of no flow of its own: {:?}", seen.labels));
        }
        check.equal("receipts are", &seen.mails.len(), &1);
        let subject = format!("Subject: Order {}\r\n", self.id);
        if !seen.mails.iter().all(|mail| mail.content.contains(&subject)) {
            check.wrong(format!("its receipt is about something else: {:?}", seen.mails));
        }
        let payment = if self.is_answer_lost {
            "its payment's answer was lost, asked for and found: charged once"
        } else {
            "charged once"
        };
        let flow = flow.copied().unwrap_or_default();
        format!("{payment}; label {label} by flow {flow}; receipt mailed")
    }

    fn declined(&self, seen: &OrderObservations<'_>, check: &mut OrderProblems) -> String {
        check.equal("the way of its saga ends as", &seen.way.last().copied(), &Some("completed"));
        check.equal(
            "its payment is",
            &seen.payment,
            &PaymentCounts { declined: 1, ..PaymentCounts::default() },
        );
        if seen.way.contains(&"compensating") {
            check.wrong(format!("something was undone: {:?}", seen.way));
        }
        self.cancelled(seen, "payment declined", check);
        "payment declined; there was nothing to undo".to_owned()
    }

    fn unpaid(&self, seen: &OrderObservations<'_>, check: &mut OrderProblems) -> String {
        check.equal("the way of its saga ends as", &seen.way.last().copied(), &Some("compensated"));
        let released = PaymentCounts { reserved: 1, released: 1, ..PaymentCounts::default() };
        check.equal("its payment is", &seen.payment, &released);
        self.cancelled(seen, "not paid within 3 seconds", check);
        "not paid within 3 seconds; its reservation was released, once".to_owned()
    }

    fn cancelled(&self, seen: &OrderObservations<'_>, reason: &str, check: &mut OrderProblems) {
        let cancelled = Some(DemoOrderState::Cancelled { reason: reason.to_owned() });
        check.equal("it is", &seen.aggregate, &cancelled);
        check.equal("receipts are", &seen.mails.len(), &0);
    }
}

/// Deviations from the expected outcome.
#[derive(Default)]
struct OrderProblems(Vec<String>);

impl OrderProblems {
    fn equal<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, found: &T, wanted: &T) {
        if found != wanted {
            self.wrong(format!("{what} {found:?}, not {wanted:?}"));
        }
    }

    fn wrong(&mut self, problem: String) {
        self.0.push(problem);
    }
}

impl DemoOrderReport {
    /// Returns the report's row in a table.
    pub(super) fn row(&self) -> Vec<String> {
        vec![self.order.clone(), self.status.to_owned(), self.what.clone()]
    }

    /// Returns the deviations from the expected outcome.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        self.problems.iter().cloned()
    }
}
