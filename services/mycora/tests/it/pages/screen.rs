//! Content that a terminal shows.

/// The lines that stand on a terminal of so many columns when all of this was written to it, with those that have scrolled away.
/// Knows what progress is drawn with; anything else is a panic.
pub(super) fn shown(written: &str, columns: usize) -> Vec<String> {
    let mut rows: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0_usize, 0);
    let mut characters = written.chars();
    while let Some(character) = characters.next() {
        match character {
            '\r' => column = 0,
            '\n' => row += 1,
            '\u{1b}' => match sequence(&mut characters) {
                (count, 'A') => row = row.saturating_sub(count),
                (count, 'B') => row += count,
                (2, 'K') => rows[row].clear(),
                // Colors.
                (_, 'm') => {}
                (count, end) => panic!("ESC [ {count} {end}"),
            },
            _ => {
                // A full line is left with the next character.
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
                rows.resize(rows.len().max(row + 1), Vec::new());
                let line = &mut rows[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = character;
                column += 1;
            }
        }
        rows.resize(rows.len().max(row + 1), Vec::new());
    }
    rows.into_iter().map(|line| String::from_iter(line).trim_end().to_owned()).collect()
}

/// The number and the end of a control sequence, after its escape.
fn sequence(characters: &mut impl Iterator<Item = char>) -> (usize, char) {
    assert_eq!(characters.next(), Some('['), "a control sequence");
    let (mut count, mut end) = (String::new(), None);
    for character in characters {
        if !(character.is_ascii_digit() || character == ';') {
            end = Some(character);
            break;
        }
        count.push(character);
    }
    (count.parse().unwrap_or(1), end.expect("its end"))
}

#[test]
fn what_is_drawn_again_is_shown_once() {
    let written =
        "top\r\nab  cd\u{1b}[1A\r\u{1b}[2K\u{1b}[1B\r\u{1b}[2K\u{1b}[1A\u{1b}[32mxy\u{1b}[0m  zend\r\n";
    assert_eq!(shown(written, 4), ["top", "xy", "zend", ""]);
}
