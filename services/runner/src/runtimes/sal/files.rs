//! Files and directories of the job, beside reading and writing, which every rhai job can.

use rhai::{Array, Dynamic, INT, ImmutableString};

use crate::runtimes::rhai::{Args, Files, Outcome, Refusal};
use crate::wire::Function;

pub(super) fn call(files: &Files, function: Function, mut args: Args) -> Outcome<Dynamic> {
    let path = args.text()?;
    let of_path = |why: String| Refusal::Thrown(format!("{}({path:?}): {why}", function.name()));
    match function {
        Function::AppendFile => {
            let text = args.text()?;
            files.append(&path, text.as_bytes()).map_err(of_path).map(|()| Dynamic::UNIT)
        }
        Function::ListDir => {
            let names = files.list(&path).map_err(of_path)?.into_iter();
            Ok(names.map(|name| Dynamic::from(ImmutableString::from(name))).collect::<Array>().into())
        }
        Function::Exists => files.exists(&path).map_err(of_path).map(Dynamic::from),
        Function::FileSize => {
            let bytes = files.size(&path).map_err(of_path)?;
            Ok(INT::try_from(bytes).unwrap_or(INT::MAX).into())
        }
        Function::Remove => files.remove(&path).map_err(of_path).map(Dynamic::from),
        Function::Copy => {
            let to = args.text()?;
            let copied = files.copy(&path, &to).map_err(|why| format!("copy({path:?}, {to:?}): {why}"));
            Ok(copied.map(|()| Dynamic::UNIT)?)
        }
        Function::MakeDir => files.make_dir(&path).map_err(of_path).map(|()| Dynamic::UNIT),
        _ => Err(Refusal::Malformed),
    }
}
