//! One record of a journal: how it is laid out, sealed and read.
//!
//! ```text
//! 0   magic     4 bytes  "WPr1"
//! 4   length    u32      bytes of the body
//! 8   durable   u64      bytes of this file that were synced before the record was written
//! 16  checksum  u64      xxh3-64 of length, durable and body, seeded with the record's place
//! 24  body
//! ```
//!
//! All numbers are little endian. The seed holds the store's id, the segment and the offset, so
//! that bytes that look like a record and are not at their own place (in a document, or left
//! over from another file) are none. `durable` tells a crash from damage: a record that cannot
//! be read is torn if nothing after it says that it had been synced.

use bytes::{Bytes, BytesMut};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::{Document, Entry, Key, Revision, SchemaVersion, StoreId, Timestamp};

/// What every record begins with.
pub(crate) const MAGIC: [u8; 4] = *b"WPr1";
/// Bytes before the body.
pub(crate) const HEAD: usize = 24;
/// Longer bodies are none. The limits of a store allow less, and may change.
const MAX_BODY: usize = 64 << 20;

/// The format that this code writes. Another major number cannot be read; a later minor one may
/// add fields at the end of a body.
pub(crate) const FORMAT: SchemaVersion = SchemaVersion { major: 1, minor: 0 };

const SEGMENT: u8 = 1;
const ENTRY: u8 = 2;
const SEALED: u8 = 3;
/// Bit of an entry's flags: a document follows.
const HAS_DOCUMENT: u8 = 1;

/// The body of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The first of each segment.
    Segment(SegmentHead),
    /// A state: part of the snapshot that a segment begins with, or a change.
    Entry(Entry),
    /// The last of a segment that has a successor, with the revision that one begins at.
    Sealed(Revision),
}

/// What a segment is, and where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    /// The format of the records.
    pub(crate) format: SchemaVersion,
    /// The store.
    pub(crate) id: StoreId,
    /// The revision of the snapshot; the first change has the next one.
    pub(crate) base: Revision,
    /// Deletions up to here are forgotten.
    pub(crate) floor: Revision,
    /// States in the snapshot.
    pub(crate) states: u32,
    /// When the segment was begun.
    pub(crate) at: Timestamp,
}

/// The seed of the first record, from which the id is yet to be read.
pub(crate) const FIRST: Place = Place(0);

/// Where a record stands, as the seed of its checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(u64);

impl Place {
    /// The seeds for one segment are made from this.
    pub(crate) fn of_segment(id: StoreId, base: Revision) -> Self {
        let mut text = [0; 24];
        text[..16].copy_from_slice(&id.0);
        text[16..].copy_from_slice(&base.0.to_le_bytes());
        Self(xxh3_64(&text))
    }

    /// The place at an offset of the segment.
    pub(crate) fn at(self, offset: u64) -> Self {
        Self(self.0 ^ offset)
    }

    fn checksum(self, length: u32, durable: u64, body: &[u8]) -> u64 {
        let mut hash = Xxh3::with_seed(self.0);
        hash.update(&length.to_le_bytes());
        hash.update(&durable.to_le_bytes());
        hash.update(body);
        hash.digest()
    }
}

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// They are not, or not all there, or changed.
    Broken(&'static str),
    /// They are, of a kind or format of a later version.
    Newer(String),
}

/// A record and what its head says.
#[derive(Debug)]
pub(crate) struct Framed {
    pub(crate) record: Record,
    pub(crate) durable: u64,
    /// Bytes of head and body.
    pub(crate) length: usize,
}

/// Appends a record to `out`.
pub(crate) fn write(out: &mut Vec<u8>, place: Place, durable: u64, record: &Record) {
    let body = encode(record);
    // The limits of a store are far below.
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&durable.to_le_bytes());
    out.extend_from_slice(&place.checksum(length, durable, &body).to_le_bytes());
    out.extend_from_slice(&body);
}

/// The `durable` of what may be a record at the beginning of `bytes`, unchecked.
pub(crate) fn durable_of(bytes: &[u8]) -> Option<u64> {
    bytes.strip_prefix(&MAGIC)?.get(4..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// Reads the record at the beginning of `bytes`.
pub(crate) fn read(bytes: &Bytes, place: Place) -> Result<Framed, Unreadable> {
    let mut head = Fields(bytes.clone());
    let broken = Unreadable::Broken;
    if head.array() != Some(MAGIC) {
        return Err(broken("no record begins there"));
    }
    let (length, durable, checksum) = (|| Some((head.u32()?, head.u64()?, head.u64()?)))()
        .ok_or(broken("the record is cut off"))?;
    if length as usize > MAX_BODY {
        return Err(broken("the length of the record is impossible"));
    }
    let body = head.take(length as usize).ok_or(broken("the record is cut off"))?;
    if place.checksum(length, durable, &body) != checksum {
        return Err(broken("the checksum of the record does not match"));
    }
    let record = decode(body)?;
    Ok(Framed { record, durable, length: HEAD + length as usize })
}

fn encode(record: &Record) -> Bytes {
    let mut out = BytesMut::new();
    match record {
        Record::Segment(head) => {
            out.extend_from_slice(&[SEGMENT]);
            out.extend_from_slice(&head.format.major.to_le_bytes());
            out.extend_from_slice(&head.format.minor.to_le_bytes());
            out.extend_from_slice(&head.id.0);
            out.extend_from_slice(&head.base.0.to_le_bytes());
            out.extend_from_slice(&head.floor.0.to_le_bytes());
            out.extend_from_slice(&head.states.to_le_bytes());
            out.extend_from_slice(&head.at.0.to_le_bytes());
        }
        Record::Entry(entry) => {
            out.extend_from_slice(&[ENTRY]);
            encode_entry(&mut out, entry);
        }
        Record::Sealed(next) => {
            out.extend_from_slice(&[SEALED]);
            out.extend_from_slice(&next.0.to_le_bytes());
        }
    }
    out.freeze()
}

/// Writes a state, as in a journal and as in the index.
pub(crate) fn encode_entry(out: &mut BytesMut, entry: &Entry) {
    let flags = if entry.document.is_some() { HAS_DOCUMENT } else { 0 };
    out.extend_from_slice(&[flags]);
    out.extend_from_slice(&entry.revision.0.to_le_bytes());
    out.extend_from_slice(&entry.created.0.to_le_bytes());
    out.extend_from_slice(&entry.at.0.to_le_bytes());
    text(out, &entry.author);
    text(out, entry.key.as_str());
    if let Some(document) = &entry.document {
        out.extend_from_slice(&document.schema.major.to_le_bytes());
        out.extend_from_slice(&document.schema.minor.to_le_bytes());
        let length = u32::try_from(document.bytes.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&document.bytes);
    }
    out.extend_from_slice(&entry.extra);
}

fn text(out: &mut BytesMut, text: &str) {
    // Keys and authors are bounded far below.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn decode(body: Bytes) -> Result<Record, Unreadable> {
    let mut fields = Fields(body);
    let broken = Unreadable::Broken("the fields of the record do not fit it");
    match fields.u8().ok_or(broken.clone())? {
        SEGMENT => {
            let format = fields.version().ok_or(broken.clone())?;
            if format.major != FORMAT.major {
                let found = format!("format {}.{}", format.major, format.minor);
                return Err(Unreadable::Newer(found));
            }
            fields.segment(format).map(Record::Segment).ok_or(broken)
        }
        ENTRY => decode_entry(fields.0).map(Record::Entry).ok_or(broken),
        SEALED => fields.u64().map(|next| Record::Sealed(Revision(next))).ok_or(broken),
        kind => Err(Unreadable::Newer(format!("a record of kind {kind}"))),
    }
}

/// Reads a state back.
pub(crate) fn decode_entry(body: Bytes) -> Option<Entry> {
    let mut fields = Fields(body);
    let flags = fields.u8()?;
    let revision = Revision(fields.u64()?);
    let created = Revision(fields.u64()?);
    let at = Timestamp(fields.u64()?);
    let author = fields.text()?.as_str().into();
    let key = Key::parse(&fields.text()?).ok()?;
    let document = if flags & HAS_DOCUMENT == 0 {
        None
    } else {
        let schema = fields.version()?;
        let length = fields.u32()?;
        Some(Document { schema, bytes: fields.take(length as usize)? })
    };
    Some(Entry { key, revision, created, at, author, document, extra: fields.0 })
}

/// Takes fields off the beginning.
struct Fields(Bytes);

impl Fields {
    fn take(&mut self, length: usize) -> Option<Bytes> {
        (length <= self.0.len()).then(|| self.0.split_to(length))
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let length = self.u16()?;
        String::from_utf8(self.take(usize::from(length))?.into()).ok()
    }

    fn version(&mut self) -> Option<SchemaVersion> {
        Some(SchemaVersion { major: self.u16()?, minor: self.u16()? })
    }

    fn segment(&mut self, format: SchemaVersion) -> Option<SegmentHead> {
        Some(SegmentHead {
            format,
            id: StoreId(self.array()?),
            base: Revision(self.u64()?),
            floor: Revision(self.u64()?),
            states: self.u32()?,
            at: Timestamp(self.u64()?),
        })
    }
}

#[cfg(test)]
mod tests;
