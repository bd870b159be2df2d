export interface ToolCall {
  name: string;
  arguments: Record<string, unknown> | string;
}

export interface ReplyOptions {
  reasoning?: string;
  toolCalls?: ToolCall[];
  /** An error by name or status, such as 429, or what breaks the reply: "disconnect; after_events=3". */
  fault?: string | number;
  /** Number of uses. */
  times?: number;
  /** Conditions on requests, such as {last_user_regex: "weather"}. */
  match?: Record<string, string>;
}

/** A request as the server received it, without keys. `body` is null for one over 1 MB. */
export interface ReceivedRequest {
  path: string;
  headers: Record<string, string>;
  model: string;
  lastUser: string;
  body: any;
  answeredBy: "playback" | "generated" | "error" | "forwarded";
}

export class ServerError extends Error {}

export class Server {
  readonly url: string;
  readonly baseURL: string;
  readonly log: string;
  reply(text?: string | null, options?: ReplyOptions): Promise<void>;
  requests(): Promise<ReceivedRequest[]>;
  setFaults(faults: Record<string, unknown>): Promise<void>;
  clear(): Promise<void>;
  stop(): Promise<void>;
}

export function startServer(...flags: string[]): Promise<Server>;
