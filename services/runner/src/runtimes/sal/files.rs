//! Files and directories of the job, beside reading and writing, which every rhai job can.

use rhai::{Array, Dynamic, INT, ImmutableString};

use crate::runtimes::rhai::{FunctionArgs, ScriptFiles, ScriptFunctionError, ScriptFunctionResult};
use crate::wire::ServedFunction;

pub(super) fn call(
    files: &ScriptFiles,
    function: ServedFunction,
    mut args: FunctionArgs,
) -> ScriptFunctionResult<Dynamic> {
    let path = args.text()?;
    let of_path = |why: String| ScriptFunctionError::Thrown(format!("{}({path:?}): {why}", function.name()));
    match function {
        ServedFunction::AppendFile => {
            let text = args.text()?;
            files.append(&path, text.as_bytes()).map_err(of_path).map(|()| Dynamic::UNIT)
        }
        ServedFunction::ListDir => {
            let names = files.list(&path).map_err(of_path)?.into_iter();
            Ok(names.map(|name| Dynamic::from(ImmutableString::from(name))).collect::<Array>().into())
        }
        ServedFunction::Exists => files.exists(&path).map_err(of_path).map(Dynamic::from),
        ServedFunction::FileSize => {
            let bytes = files.size(&path).map_err(of_path)?;
            Ok(INT::try_from(bytes).unwrap_or(INT::MAX).into())
        }
        ServedFunction::Remove => files.remove(&path).map_err(of_path).map(Dynamic::from),
        ServedFunction::Copy => {
            let to = args.text()?;
            let copied = files.copy(&path, &to).map_err(|why| format!("copy({path:?}, {to:?}): {why}"));
            Ok(copied.map(|()| Dynamic::UNIT)?)
        }
        ServedFunction::MakeDir => files.make_dir(&path).map_err(of_path).map(|()| Dynamic::UNIT),
        _ => Err(ScriptFunctionError::Malformed),
    }
}
