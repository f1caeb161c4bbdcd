//! Which slot of a cluster a key, or a channel, belongs to.

/// How many slots there are.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of all keys with this tag, as in `{tag}:name`.
pub(crate) fn of_tag(tag: &str) -> u16 {
    crc16(tag.as_bytes()) % SLOTS
}

/// The slot of a name.
pub(crate) fn of_name(name: &str) -> u16 {
    of_tag(tag(name))
}

/// Returns the part of a name that decides its slot: what stands between the first braces, if anything does, else all of it.
pub(crate) fn tag(name: &str) -> &str {
    let tag = name.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    tag.filter(|tag| !tag.is_empty()).unwrap_or(name)
}

/// CRC-16/XMODEM, as the cluster specification of Redis has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (name, slot) in [("foo", 12_182), ("{user1000}.following", 3443), ("{}x{y}", of_tag("{}x{y}"))] {
            assert_eq!(of_name(name), slot, "{name}");
        }
        assert_eq!(of_name("{5}:hint"), of_tag("5"));
    }
}
