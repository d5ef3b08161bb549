//! The model in a `multipart/form-data` body, and where it stands.
use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use memchr::memmem;

use super::ModelName;

/// The boundary, when the body says it is a form.
pub fn boundary(headers: &HeaderMap) -> Option<String> {
    multer::parse_boundary(headers.get(CONTENT_TYPE)?.to_str().ok()?).ok()
}

/// Reads the field `model`.
///
/// # Errors
/// When the body is not a well-formed form: the reason, for people.
pub async fn read(body: &Bytes, boundary: &str) -> Result<Option<ModelName<'static>>, multer::Error> {
    let once = stream::iter([Ok::<_, Infallible>(body.clone())]);
    let mut form = multer::Multipart::new(once, boundary);
    while let Some(field) = form.next_field().await? {
        if field.name() == Some("model") {
            let name = field.text().await?;
            let range = find(body, boundary, &name).unwrap_or(0..0);
            return Ok(Some(ModelName { name: name.into(), range }));
        }
    }
    Ok(None)
}

/// Where a part stands whose whole content is `value` and whose name is `model`.
fn find(body: &[u8], boundary: &str, value: &str) -> Option<std::ops::Range<usize>> {
    let delimiter = format!("--{boundary}");
    let whole = format!("\r\n\r\n{value}\r\n{delimiter}");
    memmem::find_iter(body, whole.as_bytes()).find_map(|at| {
        let start = at + 4;
        let before = body.get(..at)?;
        let part = before.get(memmem::rfind(before, delimiter.as_bytes())?..)?;
        memmem::find(part, b"name=\"model\"").map(|_| start..start + value.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn finds_the_model_and_its_bytes() {
        let body = Bytes::from_static(
            b"--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\nfast\r\n--b\r\nContent-Disposition: \
              form-data; name=\"model\"\r\n\r\nfast\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; \
              filename=\"a\"\r\nContent-Type: audio/wav\r\n\r\n\x00\x01\r\n--b--\r\n",
        );
        let model = read(&body, "b").await.unwrap().unwrap();
        assert_eq!(model.name, "fast");
        assert_eq!(&body[model.range.clone()], b"fast");
        assert!(body[..model.range.start].ends_with(b"name=\"model\"\r\n\r\n"));
    }

    #[tokio::test]
    async fn a_broken_form_is_an_error() {
        assert!(read(&Bytes::from_static(b"--b\r\nnonsense"), "b").await.is_err());
    }
}
