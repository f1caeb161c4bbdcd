// What a call that failed says to programs, and how to go on.

import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';

const TRIES_MAX = 5;
const TYPE_URL = 'type.googleapis.com/';
const types = loadSync(fileURLToPath(new URL('details.proto', import.meta.url)), { defaults: true, longs: Number });

/** The `google.rpc` details of a failed call. */
export class Refusal {
  constructor(error) {
    this.code = grpc.status[error.code];
    this.message = error.details;
    const [status] = error.metadata?.get('grpc-status-details-bin') ?? [];
    const details = status ? types['google.rpc.Status'].deserialize(status).details : [];
    const info = unpack(details, 'google.rpc.ErrorInfo');
    // One of specs/errors.md, and what else there is for programs, such as the name of a limit.
    this.reason = info?.reason;
    this.metadata = info?.metadata;
    // Everything that is wrong with the request, at once: field and description.
    const violations = unpack(details, 'google.rpc.BadRequest')?.fieldViolations ?? [];
    this.violations = Object.fromEntries(violations.map(({ field, description }) => [field, description]));
    // Milliseconds; undefined: trying again as it is will not help.
    const delay = unpack(details, 'google.rpc.RetryInfo')?.retryDelay;
    this.retryMs = delay && delay.seconds * 1000 + delay.nanos / 1e6;
  }
}

/** The detail of that kind, or nothing. */
function unpack(details, kind) {
  const found = details.find((detail) => detail.type_url === TYPE_URL + kind);
  return found && types[kind].deserialize(found.value);
}

/** The details of an error as a server sends them. */
export function pack(code, message, details) {
  const packed = Object.entries(details).map(([kind, detail]) => {
    return { type_url: TYPE_URL + kind, value: types[kind].serialize(detail) };
  });
  const metadata = new grpc.Metadata();
  metadata.set('grpc-status-details-bin', types['google.rpc.Status'].serialize({ code, message, details: packed }));
  return { code, details: message, metadata };
}

/**
 * The answer to a call, which is made again when the server says that it has no time now, and until when.
 *
 * What changes something needs a `requestId` for that: a call that was answered, and whose answer was lost,
 * changes nothing the second time.
 */
export async function patiently(call) {
  for (let tries = 1; ; tries++) {
    try {
      return await call();
    } catch (error) {
      const { retryMs } = new Refusal(error);
      if (retryMs === undefined || tries === TRIES_MAX) throw error;
      await setTimeout(retryMs);
    }
  }
}
