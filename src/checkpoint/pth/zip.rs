//! The files in a zip, of which none may be compressed: their names and where their bytes are.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::ops::Range;

/// Most files, and longest name.
const FILES: usize = 1 << 14;
const NAME_BYTES: usize = 200;

/// Signatures and sizes of a zip's records.
const END: (&[u8], usize) = (b"PK\x05\x06", 22);
const CENTRAL: (&[u8], usize) = (b"PK\x01\x02", 46);
const LOCAL: (&[u8], usize) = (b"PK\x03\x04", 30);
/// Longest comment behind the last record.
const COMMENT_BYTES: usize = u16::MAX as usize;
/// The value of a field whose number is in a record for large files.
const IN_ZIP64: usize = u32::MAX as usize;

/// The bytes of each file, by name.
pub fn files(raw: &[u8]) -> Result<BTreeMap<String, Range<usize>>> {
    let from = raw.len().saturating_sub(COMMENT_BYTES + END.1);
    let at = raw[from..].windows(4).rposition(|word| word == END.0);
    let at = from + at.context("it is no zip, so torch.save did not write it, or it is truncated")?;
    let end = record(raw, at, END)?;
    let (n, size, start) = (short(end, 10), long(end, 12), long(end, 16));
    ensure!(size != IN_ZIP64 && start != IN_ZIP64, "it is a zip of more than 4 GiB, expected less");
    ensure!(n <= FILES, "it has {n} files, expected at most {FILES}");
    let central =
        start.checked_add(size).and_then(|end| raw[..at].get(start..end)).context("its list of files is cut off")?;
    let (mut files, mut next) = (BTreeMap::new(), 0);
    for _ in 0..n {
        let entry = record(central, next, CENTRAL)?;
        let (name_len, extra, comment) = (short(entry, 28), short(entry, 30), short(entry, 32));
        let name = central.get(next + CENTRAL.1..).and_then(|rest| rest.get(..name_len));
        let name = name.filter(|name| name.len() <= NAME_BYTES && name.is_ascii());
        let name = String::from_utf8_lossy(name.context("it has a file without a readable name")?).into_owned();
        next += CENTRAL.1 + name_len + extra + comment;
        let (flags, method, stored, size, start) =
            (short(entry, 8), short(entry, 10), long(entry, 20), long(entry, 24), long(entry, 42));
        ensure!(flags & 1 == 0 && method == 0, "{name} in it is compressed or encrypted, and torch.save only stores");
        ensure!(stored == size && size != IN_ZIP64, "{name} in it has no plain size");
        let local = record(raw, start, LOCAL)?;
        let data = start + LOCAL.1 + short(local, 26) + short(local, 28);
        let range = data..data.checked_add(size).with_context(|| format!("{name} in it has no plain size"))?;
        ensure!(
            range.end <= raw.len(),
            "{name} ends at byte {}, but the file has {}: it is truncated",
            range.end,
            raw.len()
        );
        if files.insert(name.clone(), range).is_some() {
            bail!("it has two files {name}");
        }
    }
    Ok(files)
}

/// The record of that signature and size.
fn record<'a>(raw: &'a [u8], at: usize, (signature, len): (&[u8], usize)) -> Result<&'a [u8]> {
    let record = raw.get(at..).and_then(|rest| rest.get(..len)).filter(|record| record.starts_with(signature));
    record.context("its zip records are damaged")
}

fn short(record: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([record[at], record[at + 1]]))
}

fn long(record: &[u8], at: usize) -> usize {
    u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]) as usize
}
