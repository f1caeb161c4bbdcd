//! Labels: descriptions that admins give to a runner, and requirements of a node for its runner.

use std::collections::BTreeMap;

use crate::limits;
use crate::printable::{check_line, is_hidden};
use crate::violation::Violations;

/// Checks labels, and adds their problems to `violations`.
pub fn check_labels(labels: &BTreeMap<String, String>, at: &str, violations: &mut Violations) {
    if labels.len() > limits::LABELS_MAX {
        let (max, found) = (limits::LABELS_MAX, labels.len());
        violations.add(at, format!("at most {max} labels are allowed, these are {found}"));
        return;
    }
    for (key, value) in labels {
        if key.len() > limits::LABEL_KEY_BYTES_MAX {
            let (max, found) = (limits::LABEL_KEY_BYTES_MAX, key.len());
            let start: String = key.chars().take(32).collect();
            let wrong = format!("the name of a label has at most {max} bytes, not {found}");
            violations.add(format!("{at}[{start}…]"), wrong);
        } else if value.len() > limits::LABEL_VALUE_BYTES_MAX {
            let (max, found) = (limits::LABEL_VALUE_BYTES_MAX, value.len());
            let wrong = format!("what a label says has at most {max} bytes, not {found}");
            violations.add(format!("{at}[{key}]"), wrong);
        } else if let Err(hidden) = check_line(key).and_then(|()| check_line(value)) {
            let key: String = key.chars().filter(|character| !is_hidden(*character)).collect();
            violations.add(format!("{at}[{key}]"), hidden);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded_in_number_and_length() {
        let fields = |labels: Vec<(String, String)>| -> Vec<String> {
            let mut violations = Violations::new();
            check_labels(&labels.into_iter().collect(), "labels", &mut violations);
            violations.as_slice().iter().map(|violation| violation.field.clone()).collect()
        };
        let of = |key: usize, value: usize| ("k".repeat(key), "v".repeat(value));
        let (key, value) = (limits::LABEL_KEY_BYTES_MAX, limits::LABEL_VALUE_BYTES_MAX);
        assert!(fields(vec![of(key, value)]).is_empty());
        assert_eq!(fields(vec![of(1, value + 1)]), ["labels[k]"]);
        assert_eq!(
            fields(vec![of(key + 1, 1), of(2, value + 1)]),
            ["labels[kk]", &format!("labels[{}…]", "k".repeat(32))]
        );
        assert_eq!(fields(vec![("k\u{1b}[2J".into(), "v".into())]), ["labels[k[2J]"]);
        assert_eq!(fields(vec![("k".into(), "\u{202e}v".into())]), ["labels[k]"]);
        assert_eq!(fields((1..=65).map(|key| of(key, 1)).collect()), ["labels"]);
    }
}
