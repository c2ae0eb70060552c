//! Forms with files.

use openai_api::{FormFault, FormModel, FormScanner};

/// However a form is cut into reads, it names the same model or is refused for the same reason,
/// and the model stands where it is said to.
///
/// # Panics
/// Where that does not hold. The first byte says where the form is cut, the rest of the first line
/// is its content type.
pub fn check(data: &[u8]) {
    let Some((cut, rest)) = data.split_first() else { return };
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return };
    let (kind, form) = (&rest[..end], &rest[end + 1..]);
    let Ok(kind) = std::str::from_utf8(kind) else { return };
    let Some(whole) = scan(kind, form, usize::MAX) else { return };
    let pieces = scan(kind, form, usize::from(*cut) + 1);
    assert_eq!(pieces.as_ref(), Some(&whole), "reads make no difference");
    if let Ok(Some(model)) = whole {
        assert_eq!(form.get(model.at), Some(model.name.as_bytes()), "it stands there");
    }
}

/// What a form says; `None` if it is none by its content type.
fn scan(kind: &str, form: &[u8], read: usize) -> Option<Result<Option<FormModel>, FormFault>> {
    let mut scanner = FormScanner::new(kind)?;
    let mut pieces = form.chunks(read.min(form.len().max(1)));
    let fed = pieces.try_for_each(|piece| scanner.feed(piece));
    let ended = fed.and_then(|()| scanner.finish());
    Some(ended.map(|()| scanner.model().cloned()))
}
