// Generated from the formulas of src/optim: run `make kernels` after a change of one.
#pragma once

#include "number.cuh"

struct adadelta {
  static const int STATES = 2, CONSTANTS = 6;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[3], sum);
    const T v1 = if_greater(v0, c[4], c[4], v0);
    const T v2 = negative(c[4]);
    const T v3 = negative(c[4]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(c[0], s[0]);
    const T v6 = mul(v4, v4);
    const T v7 = mul(c[1], v6);
    const T v8 = add(v5, v7);
    const T v9 = add(s[1], c[2]);
    const T v10 = root(v9);
    const T v11 = add(v8, c[2]);
    const T v12 = root(v11);
    const T v13 = div(v10, v12);
    const T v14 = mul(v13, v4);
    const T v15 = mul(c[0], s[1]);
    const T v16 = mul(v14, v14);
    const T v17 = mul(c[1], v16);
    const T v18 = add(v15, v17);
    const T v19 = mul(c[5], value);
    const T v20 = add(v14, v19);
    const T v21 = sub(value, v20);
    s[0] = v8;
    s[1] = v18;
    return v21;
  }
};

struct adagrad {
  static const int STATES = 1, CONSTANTS = 5;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = if_greater(v0, c[1], c[1], v0);
    const T v2 = negative(c[1]);
    const T v3 = negative(c[1]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(v4, v4);
    const T v6 = add(s[0], v5);
    const T v7 = add(v6, c[2]);
    const T v8 = root(v7);
    const T v9 = div(v4, v8);
    const T v10 = mul(c[4], value);
    const T v11 = add(v9, v10);
    const T v12 = mul(c[3], v11);
    const T v13 = sub(value, v12);
    s[0] = v6;
    return v13;
  }
};

struct adam {
  static const int STATES = 2, CONSTANTS = 9;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = mul(c[1], value);
    const T v2 = add(v0, v1);
    const T v3 = if_greater(v2, c[2], c[2], v2);
    const T v4 = negative(c[2]);
    const T v5 = negative(c[2]);
    const T v6 = if_greater(v4, v3, v5, v3);
    const T v7 = mul(c[3], s[0]);
    const T v8 = mul(c[5], v6);
    const T v9 = add(v7, v8);
    const T v10 = mul(c[4], s[1]);
    const T v11 = mul(v6, v6);
    const T v12 = mul(c[6], v11);
    const T v13 = add(v10, v12);
    const T v14 = mul(c[7], v9);
    const T v15 = root(v13);
    const T v16 = add(v15, c[8]);
    const T v17 = div(v14, v16);
    const T v18 = sub(value, v17);
    s[0] = v9;
    s[1] = v13;
    return v18;
  }
};

struct adamax {
  static const int STATES = 2, CONSTANTS = 8;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = mul(c[1], value);
    const T v2 = add(v0, v1);
    const T v3 = if_greater(v2, c[2], c[2], v2);
    const T v4 = negative(c[2]);
    const T v5 = negative(c[2]);
    const T v6 = if_greater(v4, v3, v5, v3);
    const T v7 = magnitude(v6);
    const T v8 = mul(c[3], s[1]);
    const T v9 = mul(c[4], s[0]);
    const T v10 = mul(c[5], v6);
    const T v11 = add(v9, v10);
    const T v12 = if_greater(v8, v7, v8, v7);
    const T v13 = div(v11, v12);
    const T v14 = if_greater(v12, c[6], v13, v11);
    const T v15 = mul(c[7], v14);
    const T v16 = sub(value, v15);
    s[0] = v11;
    s[1] = v12;
    return v16;
  }
};

struct adamw {
  static const int STATES = 2, CONSTANTS = 11;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = if_greater(v0, c[1], c[1], v0);
    const T v2 = negative(c[1]);
    const T v3 = negative(c[1]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(c[2], s[0]);
    const T v6 = mul(c[4], v4);
    const T v7 = add(v5, v6);
    const T v8 = mul(c[3], s[1]);
    const T v9 = mul(v4, v4);
    const T v10 = mul(c[5], v9);
    const T v11 = add(v8, v10);
    const T v12 = div(v7, c[7]);
    const T v13 = div(v11, c[8]);
    const T v14 = root(v13);
    const T v15 = add(v14, c[9]);
    const T v16 = div(v12, v15);
    const T v17 = mul(c[10], value);
    const T v18 = add(v16, v17);
    const T v19 = mul(c[6], v18);
    const T v20 = sub(value, v19);
    s[0] = v7;
    s[1] = v11;
    return v20;
  }
};

struct dcasgd {
  static const int STATES = 1, CONSTANTS = 5;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = if_greater(v0, c[1], c[1], v0);
    const T v2 = negative(c[1]);
    const T v3 = negative(c[1]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(c[2], v4);
    const T v6 = mul(v5, v4);
    const T v7 = mul(v6, s[0]);
    const T v8 = mul(c[4], value);
    const T v9 = add(v4, v8);
    const T v10 = add(v9, v7);
    const T v11 = mul(c[3], v10);
    const T v12 = sub(value, v11);
    const T v13 = sub(v12, value);
    s[0] = v13;
    return v12;
  }
};

struct dcasgd_momentum {
  static const int STATES = 2, CONSTANTS = 6;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = if_greater(v0, c[1], c[1], v0);
    const T v2 = negative(c[1]);
    const T v3 = negative(c[1]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(c[2], v4);
    const T v6 = mul(v5, v4);
    const T v7 = mul(v6, s[0]);
    const T v8 = mul(c[4], value);
    const T v9 = add(v4, v8);
    const T v10 = add(v9, v7);
    const T v11 = mul(c[3], v10);
    const T v12 = mul(c[5], s[1]);
    const T v13 = sub(v12, v11);
    const T v14 = add(value, v13);
    const T v15 = sub(v14, value);
    s[0] = v15;
    s[1] = v13;
    return v14;
  }
};

struct frozen {
  static const int STATES = 0, CONSTANTS = 0;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    return value;
  }
};

struct ftml {
  static const int STATES = 3, CONSTANTS = 10;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[1], sum);
    const T v1 = mul(c[2], value);
    const T v2 = add(v0, v1);
    const T v3 = if_greater(v2, c[3], c[3], v2);
    const T v4 = negative(c[3]);
    const T v5 = negative(c[3]);
    const T v6 = if_greater(v4, v3, v5, v3);
    const T v7 = mul(c[4], s[1]);
    const T v8 = mul(v6, v6);
    const T v9 = mul(c[5], v8);
    const T v10 = add(v7, v9);
    const T v11 = div(v10, c[6]);
    const T v12 = root(v11);
    const T v13 = add(v12, c[7]);
    const T v14 = mul(c[8], v13);
    const T v15 = mul(c[0], s[2]);
    const T v16 = mul(c[9], v6);
    const T v17 = add(v15, v16);
    const T v18 = mul(c[0], s[0]);
    const T v19 = sub(v14, v18);
    const T v20 = mul(v19, value);
    const T v21 = sub(v17, v20);
    const T v22 = negative(v21);
    const T v23 = div(v22, v14);
    s[0] = v14;
    s[1] = v10;
    s[2] = v21;
    return v23;
  }
};

struct ftrl {
  static const int STATES = 2, CONSTANTS = 10;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[2], sum);
    const T v1 = if_greater(v0, c[3], c[3], v0);
    const T v2 = negative(c[3]);
    const T v3 = negative(c[3]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(v4, v4);
    const T v6 = add(s[1], v5);
    const T v7 = root(v6);
    const T v8 = root(s[1]);
    const T v9 = sub(v7, v8);
    const T v10 = mul(v9, value);
    const T v11 = div(v10, c[0]);
    const T v12 = sub(v4, v11);
    const T v13 = add(s[0], v12);
    const T v14 = add(c[4], v7);
    const T v15 = div(v14, c[0]);
    const T v16 = add(v15, c[5]);
    const T v17 = magnitude(v13);
    const T v18 = if_greater(v13, c[6], c[7], v13);
    const T v19 = if_greater(c[6], v13, c[8], v18);
    const T v20 = mul(v19, c[1]);
    const T v21 = sub(v20, v13);
    const T v22 = div(v21, v16);
    const T v23 = mul(v13, c[9]);
    const T v24 = if_greater(v17, c[1], v22, v23);
    s[0] = v13;
    s[1] = v6;
    return v24;
  }
};

struct groupadagrad {
  static const int STATES = 1, CONSTANTS = 4;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = if_greater(v0, c[1], c[1], v0);
    const T v2 = negative(c[1]);
    const T v3 = negative(c[1]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = div(v4, s[0]);
    const T v6 = mul(c[3], value);
    const T v7 = add(v5, v6);
    const T v8 = mul(c[2], v7);
    const T v9 = sub(value, v8);
    return v9;
  }
};

struct groupadagrad_measure {
  static const int STATES = 0, CONSTANTS = 2;
  static const bool WITH_VALUE = false;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = if_greater(v0, c[1], c[1], v0);
    const T v2 = negative(c[1]);
    const T v3 = negative(c[1]);
    const T v4 = if_greater(v2, v1, v3, v1);
    return v4;
  }
};

struct groupadagrad_root {
  static const int STATES = 1, CONSTANTS = 1;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = add(s[0], sum);
    const T v1 = add(v0, c[0]);
    const T v2 = root(v1);
    s[0] = v0;
    return v2;
  }
};

struct lamb {
  static const int STATES = 2, CONSTANTS = 5;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = div(s[0], c[1]);
    const T v1 = div(s[1], c[2]);
    const T v2 = root(v1);
    const T v3 = add(v2, c[3]);
    const T v4 = div(v0, v3);
    const T v5 = mul(c[4], value);
    const T v6 = add(v4, v5);
    const T v7 = mul(c[0], v6);
    const T v8 = sub(value, v7);
    return v8;
  }
};

struct lamb_measure {
  static const int STATES = 2, CONSTANTS = 10;
  static const bool WITH_VALUE = true;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = if_greater(v0, c[1], c[1], v0);
    const T v2 = negative(c[1]);
    const T v3 = negative(c[1]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(c[2], s[0]);
    const T v6 = mul(c[4], v4);
    const T v7 = add(v5, v6);
    const T v8 = mul(c[3], s[1]);
    const T v9 = mul(v4, v4);
    const T v10 = mul(c[5], v9);
    const T v11 = add(v8, v10);
    const T v12 = div(v7, c[6]);
    const T v13 = div(v11, c[7]);
    const T v14 = root(v13);
    const T v15 = add(v14, c[8]);
    const T v16 = div(v12, v15);
    const T v17 = mul(c[9], value);
    const T v18 = add(v16, v17);
    s[0] = v7;
    s[1] = v11;
    return v18;
  }
};

struct lamb_rate {
  static const int STATES = 0, CONSTANTS = 5;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = root(sum);
    const T v1 = root(value);
    const T v2 = if_greater(c[0], v1, c[0], v1);
    const T v3 = if_greater(v2, c[1], c[1], v2);
    const T v4 = div(v3, v0);
    const T v5 = if_greater(c[3], v0, c[2], v4);
    const T v6 = if_greater(c[3], v3, c[2], v5);
    const T v7 = mul(c[4], v6);
    return v7;
  }
};

struct lars_measure {
  static const int STATES = 0, CONSTANTS = 1;
  static const bool WITH_VALUE = true;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    return v0;
  }
};

struct lars_rate {
  static const int STATES = 0, CONSTANTS = 5;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = root(sum);
    const T v1 = root(value);
    const T v2 = mul(c[2], v1);
    const T v3 = add(v0, v2);
    const T v4 = add(v3, c[3]);
    const T v5 = mul(c[4], v1);
    const T v6 = div(v5, v4);
    const T v7 = mul(c[0], v6);
    const T v8 = if_greater(v0, c[1], v7, c[0]);
    const T v9 = if_greater(v1, c[1], v8, c[0]);
    return v9;
  }
};

struct lion {
  static const int STATES = 1, CONSTANTS = 11;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = if_greater(v0, c[1], c[1], v0);
    const T v2 = negative(c[1]);
    const T v3 = negative(c[1]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(c[2], s[0]);
    const T v6 = mul(c[3], v4);
    const T v7 = add(v5, v6);
    const T v8 = mul(c[5], s[0]);
    const T v9 = mul(c[6], v4);
    const T v10 = add(v8, v9);
    const T v11 = if_greater(v10, c[7], c[8], v10);
    const T v12 = if_greater(c[7], v10, c[9], v11);
    const T v13 = mul(c[10], value);
    const T v14 = add(v12, v13);
    const T v15 = mul(c[4], v14);
    const T v16 = sub(value, v15);
    s[0] = v7;
    return v16;
  }
};

struct nadam {
  static const int STATES = 2, CONSTANTS = 12;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = mul(c[1], value);
    const T v2 = add(v0, v1);
    const T v3 = if_greater(v2, c[2], c[2], v2);
    const T v4 = negative(c[2]);
    const T v5 = negative(c[2]);
    const T v6 = if_greater(v4, v3, v5, v3);
    const T v7 = mul(c[3], s[0]);
    const T v8 = mul(c[5], v6);
    const T v9 = add(v7, v8);
    const T v10 = mul(c[4], s[1]);
    const T v11 = mul(v6, v6);
    const T v12 = mul(c[6], v11);
    const T v13 = add(v10, v12);
    const T v14 = mul(c[7], v6);
    const T v15 = mul(c[8], v9);
    const T v16 = add(v14, v15);
    const T v17 = div(v13, c[9]);
    const T v18 = root(v17);
    const T v19 = add(v18, c[10]);
    const T v20 = mul(c[11], v16);
    const T v21 = div(v20, v19);
    const T v22 = sub(value, v21);
    s[0] = v9;
    s[1] = v13;
    return v22;
  }
};

struct nag {
  static const int STATES = 1, CONSTANTS = 5;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[2], sum);
    const T v1 = if_greater(v0, c[3], c[3], v0);
    const T v2 = negative(c[3]);
    const T v3 = negative(c[3]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(c[1], s[0]);
    const T v6 = mul(c[4], value);
    const T v7 = add(v4, v6);
    const T v8 = mul(c[0], v7);
    const T v9 = sub(v5, v8);
    const T v10 = mul(c[1], v9);
    const T v11 = sub(v10, v8);
    const T v12 = add(value, v11);
    const T v13 = mul(c[4], v12);
    const T v14 = add(v4, v13);
    const T v15 = mul(c[0], v14);
    const T v16 = sub(v5, v15);
    s[0] = v16;
    return v12;
  }
};

struct rmsprop {
  static const int STATES = 1, CONSTANTS = 8;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = mul(c[1], value);
    const T v2 = add(v0, v1);
    const T v3 = if_greater(v2, c[2], c[2], v2);
    const T v4 = negative(c[2]);
    const T v5 = negative(c[2]);
    const T v6 = if_greater(v4, v3, v5, v3);
    const T v7 = mul(v6, v6);
    const T v8 = mul(c[3], s[0]);
    const T v9 = mul(c[4], v7);
    const T v10 = add(v8, v9);
    const T v11 = add(v10, c[6]);
    const T v12 = root(v11);
    const T v13 = div(v6, v12);
    const T v14 = mul(c[5], v13);
    const T v15 = sub(value, v14);
    const T v16 = if_greater(v15, c[7], c[7], v15);
    const T v17 = negative(c[7]);
    const T v18 = negative(c[7]);
    const T v19 = if_greater(v17, v16, v18, v16);
    s[0] = v10;
    return v19;
  }
};

struct rmsprop_centered {
  static const int STATES = 3, CONSTANTS = 12;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[1], sum);
    const T v1 = mul(c[2], value);
    const T v2 = add(v0, v1);
    const T v3 = if_greater(v2, c[3], c[3], v2);
    const T v4 = negative(c[3]);
    const T v5 = negative(c[3]);
    const T v6 = if_greater(v4, v3, v5, v3);
    const T v7 = mul(v6, v6);
    const T v8 = mul(c[4], s[0]);
    const T v9 = mul(c[5], v7);
    const T v10 = add(v8, v9);
    const T v11 = mul(c[6], s[1]);
    const T v12 = mul(c[7], v6);
    const T v13 = add(v11, v12);
    const T v14 = mul(v13, v13);
    const T v15 = sub(v10, v14);
    const T v16 = if_greater(c[0], v15, c[0], v15);
    const T v17 = mul(c[8], s[2]);
    const T v18 = add(v16, c[10]);
    const T v19 = root(v18);
    const T v20 = div(v6, v19);
    const T v21 = mul(c[9], v20);
    const T v22 = sub(v17, v21);
    const T v23 = add(value, v22);
    const T v24 = if_greater(v23, c[11], c[11], v23);
    const T v25 = negative(c[11]);
    const T v26 = negative(c[11]);
    const T v27 = if_greater(v25, v24, v26, v24);
    s[0] = v10;
    s[1] = v13;
    s[2] = v22;
    return v27;
  }
};

struct sgd {
  static const int STATES = 0, CONSTANTS = 4;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[1], sum);
    const T v1 = if_greater(v0, c[2], c[2], v0);
    const T v2 = negative(c[2]);
    const T v3 = negative(c[2]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(c[3], value);
    const T v6 = add(v4, v5);
    const T v7 = mul(c[0], v6);
    const T v8 = sub(value, v7);
    return v8;
  }
};

struct sgd_momentum {
  static const int STATES = 1, CONSTANTS = 5;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[1], sum);
    const T v1 = if_greater(v0, c[2], c[2], v0);
    const T v2 = negative(c[2]);
    const T v3 = negative(c[2]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(c[3], value);
    const T v6 = add(v4, v5);
    const T v7 = mul(c[0], v6);
    const T v8 = mul(c[4], s[0]);
    const T v9 = sub(v8, v7);
    const T v10 = add(value, v9);
    s[0] = v9;
    return v10;
  }
};

struct signsgd {
  static const int STATES = 0, CONSTANTS = 7;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = if_greater(v0, c[1], c[1], v0);
    const T v2 = negative(c[1]);
    const T v3 = negative(c[1]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(c[2], value);
    const T v6 = if_greater(v4, c[4], c[5], v4);
    const T v7 = if_greater(c[4], v4, c[6], v6);
    const T v8 = mul(c[3], v7);
    const T v9 = sub(v5, v8);
    return v9;
  }
};

struct signum {
  static const int STATES = 1, CONSTANTS = 10;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = if_greater(v0, c[1], c[1], v0);
    const T v2 = negative(c[1]);
    const T v3 = negative(c[1]);
    const T v4 = if_greater(v2, v1, v3, v1);
    const T v5 = mul(c[2], value);
    const T v6 = add(v4, v5);
    const T v7 = mul(c[3], s[0]);
    const T v8 = mul(c[4], v6);
    const T v9 = add(v7, v8);
    const T v10 = mul(c[5], value);
    const T v11 = if_greater(v9, c[7], c[8], v9);
    const T v12 = if_greater(c[7], v9, c[9], v11);
    const T v13 = mul(c[6], v12);
    const T v14 = sub(v10, v13);
    s[0] = v9;
    return v14;
  }
};

struct test {
  static const int STATES = 0, CONSTANTS = 1;
  template <class T> DEVICE_MEMBER static T step(const T *c, T sum, T value, T *s) {
    const T v0 = mul(c[0], sum);
    const T v1 = add(value, v0);
    return v1;
  }
};

// Rules that change each element by its own numbers.
#define FORMULAS(X) \
  X(adadelta) \
  X(adagrad) \
  X(adam) \
  X(adamax) \
  X(adamw) \
  X(dcasgd) \
  X(dcasgd_momentum) \
  X(frozen) \
  X(ftml) \
  X(ftrl) \
  X(lamb) \
  X(lion) \
  X(nadam) \
  X(nag) \
  X(rmsprop) \
  X(rmsprop_centered) \
  X(sgd) \
  X(sgd_momentum) \
  X(signsgd) \
  X(signum) \
  X(test)

// Measures, of which squares are added up.
#define MEASURED(X) \
  X(groupadagrad_measure) \
  X(lamb_measure) \
  X(lars_measure)

// Numbers of a key, from the norms of the key.
#define KEY_NUMBERS(X) \
  X(lamb_rate) \
  X(lars_rate)

// Numbers of a row, from its norm and its state.
#define ROW_NUMBERS(X) \
  X(groupadagrad_root)

// Rules whose only state is the number of a row.
#define ROW_FORMULAS(X) \
  X(groupadagrad)
