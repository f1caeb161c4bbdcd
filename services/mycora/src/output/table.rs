//! Aligned columns.

use super::terminal::{columns, visible_line};

/// A cell is cut here; the whole value is in the JSON form.
const CELL_CHARS_MAX: usize = 120;

/// A column is not made narrower than this for the sake of the terminal.
const COLUMN_CHARS_MIN: usize = 8;
/// Separator between two columns.
const BETWEEN: &str = "  ";

/// Rows below a heading, columns as wide as their widest cell, two spaces between them; on a terminal no wider than that.
#[must_use]
pub fn render(heading: &[&str], rows: &[Vec<String>]) -> String {
    render_within(heading, rows, columns())
}

/// Renders a table whose lines are no wider than `columns` characters, where that is possible.
fn render_within(heading: &[&str], rows: &[Vec<String>], columns: Option<usize>) -> String {
    let mut rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| shown(cell)).collect()).collect();
    if let Some(columns) = columns {
        let mut widths = widths_of(heading, &rows);
        let between = BETWEEN.len() * widths.len().saturating_sub(1);
        fit(&mut widths, columns.saturating_sub(between));
        for row in &mut rows {
            row.iter_mut().zip(&widths).for_each(|(cell, most)| cut(cell, *most));
        }
    }
    aligned(heading, &rows, str::to_owned)
}

/// Takes from the widest column as long as there is no room for all.
fn fit(widths: &mut [usize], room: usize) {
    while widths.iter().sum::<usize>() > room {
        match widths.iter_mut().max_by_key(|width| **width) {
            Some(widest) if *widest > COLUMN_CHARS_MIN => *widest -= 1,
            _ => return,
        }
    }
}

fn cut(cell: &mut String, most: usize) {
    if width(cell) > most
        && let Some((end, _)) = cell.char_indices().nth(most.saturating_sub(1))
    {
        cell.truncate(end);
        cell.push('…');
    }
}

/// Renders a table whose cells are not cut: for sentences in the last column.
#[must_use]
pub fn render_whole(heading: &[&str], rows: &[Vec<String>]) -> String {
    aligned(heading, rows, shown_whole)
}

fn aligned(heading: &[&str], rows: &[Vec<String>], shown: impl Fn(&str) -> String) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| shown(cell)).collect()).collect();
    let widths = widths_of(heading, &rows);
    let mut text = String::new();
    line(&mut text, &widths, heading.iter().copied());
    for row in &rows {
        line(&mut text, &widths, row.iter().map(String::as_str));
    }
    text
}

fn widths_of(heading: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths: Vec<usize> = heading.iter().map(|cell| width(cell)).collect();
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    widths
}

/// Names and values below each other.
#[must_use]
pub fn pairs(rows: &[(&str, String)]) -> String {
    let widest = rows.iter().map(|(name, _)| width(name)).max().unwrap_or_default();
    let mut text = String::new();
    for (name, value) in rows {
        line(&mut text, &[widest, 0], [*name, value.as_str()].into_iter());
    }
    text
}

/// A text as a terminal may be given it: what scripts write can hold control characters, and be long.
#[must_use]
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}…", shown_whole(&text[..end])),
        None => shown_whole(text),
    }
}

/// Returns a text as a terminal may be given it, however long it is.
#[must_use]
pub fn shown_whole(text: &str) -> String {
    visible_line(text)
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

fn line<'a>(text: &mut String, widths: &[usize], cells: impl Iterator<Item = &'a str>) {
    let start = text.len();
    for (cell, widest) in cells.zip(widths) {
        if text.len() > start {
            text.push_str(BETWEEN);
        }
        text.push_str(cell);
        text.extend(std::iter::repeat_n(' ', widest.saturating_sub(width(cell))));
    }
    text.truncate(start + text[start..].trim_end().len());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_no_wider_than_its_terminal() {
        let rows = [
            vec!["1".into(), "x".repeat(60), "why ".repeat(20)],
            vec!["22".into(), "short".into(), "because".into()],
        ];
        let heading = ["ID", "NAME", "WHY"];
        let text = render_within(&heading, &rows, Some(50));
        assert!(text.lines().all(|line| width(line) <= 50), "{text}");
        assert!(text.contains("short") && text.contains("because"), "{text}");
        assert_eq!(text.matches('…').count(), 2, "{text}");
        assert_eq!(render_within(&heading, &rows, None).lines().map(width).max(), Some(2 + 2 + 60 + 2 + 79));
        // No column vanishes.
        let narrow = render_within(&heading, &rows, Some(5));
        assert!(narrow.lines().all(|line| width(line) <= 2 + 2 + 8 + 2 + 8), "{narrow}");
    }

    #[test]
    fn columns_are_aligned_and_lines_end_without_spaces() {
        let rows =
            [vec!["1".into(), "größer".into(), "x".into()], vec!["22".into(), "b".into(), String::new()]];
        assert_eq!(render(&["ID", "NAME", "C"], &rows), "ID  NAME    C\n1   größer  x\n22  b\n");
        assert_eq!(render(&["V"], &[vec!["a\u{1b}[31m\n".into()]]), "V\na\\x1b[31m\\n\n");
        assert_eq!(shown(&"x".repeat(200)).chars().count(), 121);
        assert_eq!(pairs(&[("a", "1".into()), ("long", "2".into())]), "a     1\nlong  2\n");
    }
}
