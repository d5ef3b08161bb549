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

/// Reads the field `model`; of several the last one counts, as in the engines (Starlette's forms) and in JSON bodies.
///
/// # Errors
/// When the body is not a well-formed form: the reason, for people.
pub async fn read(body: &Bytes, boundary: &str) -> Result<Option<ModelName<'static>>, multer::Error> {
    let once = stream::iter([Ok::<_, Infallible>(body.clone())]);
    let mut form = multer::Multipart::new(once, boundary);
    let mut last = None;
    while let Some(field) = form.next_field().await? {
        if field.name() == Some("model") {
            last = Some(field.text().await?);
        }
    }
    Ok(last.map(|name| {
        let range = find(body, boundary, &name).unwrap_or(0..0);
        ModelName { name: name.into(), range }
    }))
}

/// Where the last part stands whose whole content is `value` and whose name is `model`.
fn find(body: &[u8], boundary: &str, value: &str) -> Option<std::ops::Range<usize>> {
    let delimiter = format!("--{boundary}");
    let whole = format!("\r\n\r\n{value}\r\n{delimiter}");
    let places: Vec<usize> = memmem::find_iter(body, whole.as_bytes()).collect();
    places.into_iter().rev().find_map(|at| {
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
    async fn the_last_of_two_counts() {
        let part = |name: &str, value: &str| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        for first in ["slow", "fast"] {
            let form = part("model", first) + &part("model", "fast") + &part("prompt", "fast") + "--b--\r\n";
            let model = read(&Bytes::from(form.clone()), "b").await.unwrap().unwrap();
            assert_eq!(model.name, "fast");
            let last = form.rfind("name=\"model\"\r\n\r\n").unwrap() + "name=\"model\"\r\n\r\n".len();
            assert_eq!(model.range, last..last + 4);
        }
    }

    #[tokio::test]
    async fn a_broken_form_is_an_error() {
        assert!(read(&Bytes::from_static(b"--b\r\nnonsense"), "b").await.is_err());
    }
}
